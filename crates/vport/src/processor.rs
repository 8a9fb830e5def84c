//! Whose processor this is, where makers differ in what is fastest.

/// Whether its maker has this name.
pub(crate) fn is_by(maker: &[u8; 12]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // The name, in three pieces.
        let name = core::arch::x86_64::__cpuid(0);
        [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).as_flattened() == maker
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = maker;
        false
    }
}
