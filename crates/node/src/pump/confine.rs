//! Gives up every right that a pump does not need.

use std::collections::BTreeMap;

use anyhow::Result;
use nix::libc;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Becomes the user, without capabilities or a way to gain any, and with few system calls.
pub(super) fn become_nobody(uid: u32) -> Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    setgroups(&[])?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    setresgid(gid, gid, gid)?;
    // All capabilities go with the last root id.
    setresuid(uid, uid, uid)?;
    // The C library falls back from clone3, whose arguments a filter cannot see, to clone where it is told that there is
    // none. Of two filters the stricter answer counts.
    install([(libc::SYS_clone3, vec![])].into(), SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    install(allowed()?, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn install(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<()> {
    let filter = SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?;
    Ok(seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?)
}

/// What moving frames, a control thread, and connecting to the broker again take.
fn allowed() -> Result<Rules> {
    let mut rules: Rules = ALWAYS.iter().map(|call| (*call, vec![])).collect();
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, vec![]);
    let only = |argument, mask: u64, value: u64| -> Result<Vec<SeccompRule>> {
        let operator = SeccompCmpOp::MaskedEq(mask);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)?;
        Ok(vec![SeccompRule::new(vec![condition])?])
    };
    let everything = u64::MAX;
    rules.insert(libc::SYS_socket, only(0, everything, libc::AF_UNIX as u64)?);
    rules.insert(libc::SYS_ioctl, only(1, everything, libc::FIONBIO)?);
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    rules.insert(libc::SYS_clone, only(0, namespaces as u64, 0)?);
    Ok(rules)
}

const ALWAYS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_dup,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_setsockopt,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
];
