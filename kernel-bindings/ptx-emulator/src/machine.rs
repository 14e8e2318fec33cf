//! The public machine: memory, modules, launches.
//!
//! ```text
//! Module::parse(text) -> Module
//! Machine::new(MachineConfig) -> Machine
//! machine.alloc(bytes, name) -> DevicePtr          exact size, 256-byte aligned, guard gaps on both sides
//! machine.alloc_virtual(bytes, name) -> DevicePtr  sparse, for offsets past 2^31
//! machine.write(ptr, &[u8]) / fill(ptr, value, bytes) / read(ptr, &mut [u8]) / free(ptr)
//! machine.launch(&Module, entry, &LaunchConfig, &param_bytes) -> Result<LaunchReport, LaunchError>
//! ```
