//! `NEURON_PROTECT_DEVICE_MEMORY=1`: a process of its own, because the mode holds from start to exit.

use neuron_runtime::{device, space};

#[test]
fn host_code_faults_on_device_addresses_and_uses_the_view() {
    // SAFETY: the only test of this process, before the devices start.
    unsafe { std::env::set_var("NEURON_PROTECT_DEVICE_MEMORY", "1") };
    let a = device::allocate(0, 0, 4096).expect("fits");
    let view = space::host_view(a);
    assert!(space::is_protected() && view != a);
    assert_eq!(space::host_view(a.wrapping_add(100)), view.wrapping_add(100));
    assert_eq!(space::host_view(view), view);
    // SAFETY: the view of 4096 allocated bytes.
    unsafe { view.write_bytes(3, 4096) };
    // SAFETY: the child only reads and exits; the read ends it with a signal.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no core file, then the read that must fault.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let value = a.read_volatile();
            libc::_exit(i32::from(value));
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:x}");
    device::free(a);
}
