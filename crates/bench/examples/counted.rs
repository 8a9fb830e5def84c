//! Counted by hand.
use clap::Parser;
#[derive(Parser)]
struct A {
    #[command(flatten)]
    c: bench::count::Counted,
}
fn main() -> anyhow::Result<()> {
    bench::count::be_counted(&A::parse().c)
}
