//! The PTX machine as a device.
