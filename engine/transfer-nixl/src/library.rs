//! NIXL's C interface, opened before its first use: the bindings would end the process where it is missing.

use crate::system;
use std::sync::OnceLock;
use transfer::transport::TransportError;

/// Where the library is, e.g. `.nixl_cu12.mesonpy.libs/libnixl_capi.so` beside the folder `nixl_cu12.libs` of the wheel.
const PATH: &str = "NIXL_LIBRARY";
const SONAME: &str = "libnixl_capi.so";

/// Opens the library named by the environment variable `NIXL_LIBRARY`, or the one that the system's loader finds. Once per
/// process; it stays open.
///
/// # Errors
/// It is not there, or is none.
pub fn load() -> Result<(), TransportError> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(open).clone().map_err(system)
}

fn open() -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    let path = std::env::var_os(PATH).unwrap_or_else(|| SONAME.into());
    // SAFETY: running the initialisers of a shared library is as sound as the library; the operator names it, and it is the
    // one that the bindings would open themselves. It is never closed (forgotten below), so no symbol of it dangles.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    match library {
        // The bindings open it again by its name, which the loader matches to this one.
        Ok(library) => std::mem::forget(library),
        Err(error) => return Err(format!("{}: {error}; set {PATH} to {SONAME} of NIXL 1.5", path.display())),
    }
    Ok(())
}
