//! The system call filter of every function.
//!
//! The allow-list is Docker's default for a container without capabilities, less what a packet function has no use for
//! (keyrings, modules of other architectures, kernel introspection). Two kinds of refusal: a call that is known and refused
//! answers `EPERM`; one that is not on any list answers `ENOSYS`, so that a C library newer than this list falls back to
//! what older kernels had. Only the host's own architecture is admitted: a second one would be a second, untested filter.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

/// Allowed whatever the arguments.
const ALLOWED: &[&str] = &[
    // files
    "access",
    "chdir",
    "chmod",
    "chown",
    "close",
    "close_range",
    "copy_file_range",
    "creat",
    "dup",
    "dup2",
    "dup3",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fchdir",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "fcntl",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "flock",
    "fremovexattr",
    "fsetxattr",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "futimesat",
    "getcwd",
    "getdents",
    "getdents64",
    "getxattr",
    "inotify_add_watch",
    "inotify_init",
    "inotify_init1",
    "inotify_rm_watch",
    "ioctl",
    "lchown",
    "lgetxattr",
    "link",
    "linkat",
    "listxattr",
    "llistxattr",
    "lremovexattr",
    "lseek",
    "lsetxattr",
    "lstat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readlink",
    "readlinkat",
    "readv",
    "removexattr",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sendfile",
    "setxattr",
    "splice",
    "stat",
    "statfs",
    "statx",
    "symlink",
    "symlinkat",
    "sync",
    "sync_file_range",
    "syncfs",
    "tee",
    "truncate",
    "umask",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
    "vmsplice",
    "write",
    "writev",
    // memory (mmap, memfd_create and shmget: see HUGE)
    "brk",
    "cachestat",
    "get_mempolicy",
    "madvise",
    "mbind",
    "membarrier",
    "mincore",
    "mlock",
    "mlock2",
    "mlockall",
    "mprotect",
    "mremap",
    "mseal",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "pkey_alloc",
    "pkey_free",
    "pkey_mprotect",
    "remap_file_pages",
    "set_mempolicy",
    "shmat",
    "shmctl",
    "shmdt",
    // processes and threads
    "alarm",
    "arch_prctl",
    "capget",
    "capset",
    "execve",
    "execveat",
    "exit",
    "exit_group",
    "fork",
    "futex",
    "futex_requeue",
    "futex_wait",
    "futex_waitv",
    "futex_wake",
    "get_robust_list",
    "get_thread_area",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getitimer",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "getuid",
    "ioprio_get",
    "ioprio_set",
    "kill",
    "landlock_add_rule",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "map_shadow_stack",
    "pause",
    "pidfd_open",
    "pidfd_send_signal",
    "prctl",
    "prlimit64",
    "process_mrelease",
    "ptrace",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_tgsigqueueinfo",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getattr",
    "sched_getparam",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "sched_yield",
    "seccomp",
    "set_robust_list",
    "set_thread_area",
    "set_tid_address",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "setitimer",
    "setpgid",
    "setpriority",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setrlimit",
    "setsid",
    "setuid",
    "sigaltstack",
    "tgkill",
    "time",
    "times",
    "tkill",
    "vfork",
    "wait4",
    "waitid",
    // waiting, timers, pipes
    "clock_adjtime",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_ctl_old",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "epoll_wait_old",
    "eventfd",
    "eventfd2",
    "gettimeofday",
    "io_cancel",
    "io_destroy",
    "io_getevents",
    "io_pgetevents",
    "io_setup",
    "io_submit",
    "nanosleep",
    "pipe",
    "pipe2",
    "poll",
    "ppoll",
    "pselect6",
    "select",
    "signalfd",
    "signalfd4",
    "timer_create",
    "timer_delete",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    // sockets (socket itself: see `socket`) and System V and POSIX messages
    "accept",
    "accept4",
    "bind",
    "connect",
    "getpeername",
    "getsockname",
    "getsockopt",
    "listen",
    "mq_getsetattr",
    "mq_notify",
    "mq_open",
    "mq_timedreceive",
    "mq_timedsend",
    "mq_unlink",
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socketpair",
    // the machine
    "adjtimex",
    "getrandom",
    "sysinfo",
    "uname",
];

/// Known, and refused with `EPERM`: what would need a capability, and what widens the kernel's attack surface.
const REFUSED: &[&str] = &[
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "migrate_pages",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
    "vhangup",
];

/// Calls with a flag that reserves hugepages: (name, argument's index, flag). They are allowed without it.
///
/// A function gets hugepages only as file descriptors from the broker, which carries their charge.
const HUGE: &[(&str, usize, u64)] = &[
    ("mmap", 3, libc::MAP_HUGETLB as u64),
    ("memfd_create", 1, libc::MFD_HUGETLB as u64),
    ("shmget", 2, libc::SHM_HUGETLB as u64),
];

/// Flags of `clone` that make namespaces.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Execution domains that programs ask for: Linux, Linux with UNAME26, without address randomisation, and "which is it?".
const PERSONALITIES: &[u64] = &[0, 0x2_0000, 0x4_0000, 0xffff_ffff];

/// Families of sockets: what the function's own network namespace and mounts confine. Others are not confined by it (vsock reaches a
/// hypervisor), are much of the kernel for little use (ALG), or need a capability. The kernel reads the low 32 bits of the argument,
/// and so does the filter.
const FAMILIES: &[libc::c_int] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Beyond all that Linux has; what is beyond answers `ENOSYS`.
const FAMILIES_END: libc::c_int = 64;

/// The filter, for the host's architecture.
pub(crate) fn filter() -> LinuxSeccomp {
    let mut calls = vec![syscall(ALLOWED, LinuxSeccompAction::ScmpActAllow, None, vec![])];
    calls.push(syscall(REFUSED, LinuxSeccompAction::ScmpActErrno, Some(libc::EPERM), vec![]));
    for &(name, index, flag) in HUGE {
        calls.extend(flag_refused(name, index, flag));
    }
    calls.extend(flag_refused("clone", 0, NEW_NAMESPACES));
    // Its flags lie in memory, where no filter can see them; ENOSYS makes the C library use clone.
    calls.push(syscall(&["clone3"], LinuxSeccompAction::ScmpActErrno, Some(libc::ENOSYS), vec![]));
    for &persona in PERSONALITIES {
        let equal = arg(0, persona, None, LinuxSeccompOperator::ScmpCmpEq);
        calls.push(syscall(&["personality"], LinuxSeccompAction::ScmpActAllow, None, vec![equal]));
    }
    for family in 0..FAMILIES_END {
        let is_it = arg(0, 0xffff_ffff, Some(family as u64), LinuxSeccompOperator::ScmpCmpMaskedEq);
        let (action, errno) = match FAMILIES.contains(&family) {
            true => (LinuxSeccompAction::ScmpActAllow, None),
            false => (LinuxSeccompAction::ScmpActErrno, Some(libc::EPERM)),
        };
        calls.push(syscall(&["socket"], action, errno, vec![is_it]));
    }

    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(libc::ENOSYS as u32)
        .architectures(vec![native()])
        .syscalls(calls)
        .build()
        .expect("every mandatory field is set")
}

/// `name` is allowed without any of `flags` in argument `index`, and answers `EPERM` with one.
fn flag_refused(name: &str, index: usize, flags: u64) -> Vec<LinuxSyscall> {
    let mut calls = Vec::new();
    let clear = arg(index, flags, Some(0), LinuxSeccompOperator::ScmpCmpMaskedEq);
    calls.push(syscall(&[name], LinuxSeccompAction::ScmpActAllow, None, vec![clear]));
    for bit in (0..64).map(|shift| 1 << shift).filter(|bit| flags & bit != 0) {
        let set = arg(index, bit, Some(bit), LinuxSeccompOperator::ScmpCmpMaskedEq);
        calls.push(syscall(&[name], LinuxSeccompAction::ScmpActErrno, Some(libc::EPERM), vec![set]));
    }
    calls
}

fn syscall(names: &[&str], action: LinuxSeccompAction, errno: Option<i32>, args: Vec<LinuxSeccompArg>) -> LinuxSyscall {
    let mut builder =
        LinuxSyscallBuilder::default().names(names.iter().map(ToString::to_string).collect::<Vec<_>>()).action(action);
    if let Some(errno) = errno {
        builder = builder.errno_ret(errno as u32);
    }
    if !args.is_empty() {
        builder = builder.args(args);
    }
    builder.build().expect("every mandatory field is set")
}

/// For a masked comparison `value` is the mask and `datum` what must remain under it.
fn arg(index: usize, value: u64, datum: Option<u64>, op: LinuxSeccompOperator) -> LinuxSeccompArg {
    let mut builder = LinuxSeccompArgBuilder::default().index(index).value(value).op(op);
    if let Some(datum) = datum {
        builder = builder.value_two(datum);
    }
    builder.build().expect("every mandatory field is set")
}

fn native() -> Arch {
    if cfg!(target_arch = "aarch64") { Arch::ScmpArchAarch64 } else { Arch::ScmpArchX86_64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_both_allowed_and_refused() {
        let conditional: Vec<&str> = HUGE.iter().map(|(name, ..)| *name).chain(["clone", "clone3", "socket"]).collect();
        for name in ALLOWED {
            assert!(!REFUSED.contains(name) && !conditional.contains(name), "{name}");
        }
        for name in REFUSED {
            assert!(!conditional.contains(name), "{name}");
        }
    }

    #[test]
    fn calls_that_make_namespaces_or_mounts_are_not_allowed() {
        for name in ["unshare", "setns", "mount", "umount2", "pivot_root", "bpf", "keyctl", "io_uring_setup"] {
            assert!(REFUSED.contains(&name), "{name}");
        }
    }
}
