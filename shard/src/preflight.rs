//! What the runtime needs of the machine, looked at before the first shard starts: without these
//! the executor would panic, or fail with a number.
//!
//! It owns the sentences that say what to change (a sysctl, a unit's limit, a sandbox). It changes
//! nothing and raises no limit: the ring that it sets up to see whether one can be had is given back.

use std::io;

use rustix::process::{Resource, getrlimit};

/// Locked memory without which an executor refuses to start.
const MEMLOCK_BYTES: u64 = 512 << 10;

/// What the machine does not offer, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    #[error(
        "this kernel has no io_uring, or a sandbox hides it (a container's seccomp profile?); \
         run on Linux 5.8 or newer and allow the io_uring system calls"
    )]
    NoIoUring,
    #[error(
        "io_uring is forbidden here; set the sysctl kernel.io_uring_disabled to 0, or allow the \
         io_uring system calls in the sandbox of this process"
    )]
    IoUringForbidden,
    #[error("io_uring can't be set up: {0}")]
    IoUring(#[source] io::Error),
    #[error(
        "this process may lock {soft} bytes of memory, and a shard needs {MEMLOCK_BYTES}; raise \
         LimitMEMLOCK in the service's unit (or `ulimit -l`) to at least 8 MiB"
    )]
    MemlockTooSmall { soft: u64 },
}

/// Looks whether shards can start on this machine.
pub fn preflight() -> Result<(), PreflightError> {
    check_memlock(getrlimit(Resource::Memlock).current)?;
    check_io_uring()
}

fn check_memlock(soft: Option<u64>) -> Result<(), PreflightError> {
    match soft {
        Some(soft) if soft < MEMLOCK_BYTES => Err(PreflightError::MemlockTooSmall { soft }),
        _ => Ok(()),
    }
}

fn check_io_uring() -> Result<(), PreflightError> {
    match try_io_uring() {
        Ok(()) => Ok(()),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ENOSYS) => PreflightError::NoIoUring,
            Some(libc::EPERM | libc::EACCES) => PreflightError::IoUringForbidden,
            _ => PreflightError::IoUring(error),
        }),
    }
}

/// Sets a small ring up and gives it back.
#[allow(unsafe_code)]
fn try_io_uring() -> io::Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};

    /// The kernel's `struct io_uring_params` is 120 bytes long.
    #[repr(C, align(8))]
    struct Params([u8; 120]);
    const ENTRIES: libc::c_long = 4;

    let mut params = Params([0; 120]);
    // SAFETY: `params` is zeroed, as large and as aligned as the kernel's struct, and outlives the
    // call, after which the kernel keeps no pointer to it.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut params) };
    let Ok(ring) = i32::try_from(ring) else { return Err(io::Error::other("the kernel gave no descriptor")) };
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made by the call above and nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(ring) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_is_told_with_the_remedy() {
        let error = check_memlock(Some(64 << 10)).expect_err("too little");
        assert!(error.to_string().contains("LimitMEMLOCK"), "{error}");
        assert!(check_memlock(None).is_ok(), "unlimited");
        assert!(check_memlock(Some(8 << 20)).is_ok());
    }

    #[test]
    fn this_machine_passes() {
        preflight().expect("the tests of this crate need io_uring");
    }
}
