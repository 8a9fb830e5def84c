//! Scratch: two processes forwarding between two ports.
use port::*;
use std::time::{Duration, Instant};
use vport::broker::*;

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

fn forward(function: &str, core: usize, dir: &str, inject: usize) {
    let options = OpenOptions { socket: format!("{dir}/{function}").into(), ..Default::default() };
    let mut x = port::open("x", &options).unwrap();
    let mut y = port::open("y", &options).unwrap();
    pin(core);
    let (x, y) = (&mut x.queues[0], &mut y.queues[0]);
    let frame = vec![5u8; std::env::var("LEN").map_or(64, |v| v.parse().unwrap())];
    std::thread::sleep(Duration::from_millis(300));
    x.rx.recv();
    y.rx.recv();
    for _ in 0..inject {
        x.tx.send(&[PacketRef::from_slice(&frame)]);
        y.tx.send(&[PacketRef::from_slice(&frame)]);
    }
    let mut moved = 0u64;
    let mut rounds = 0u64;
    let mut busy = 0u64;
    let start = Instant::now();
    let mut lost = 0;
    loop {
        rounds += 1;
        for (from, to) in [(&mut x.rx, &mut y.tx), (&mut y.rx, &mut x.tx)] {
            let mut burst = from.recv();
            let n = burst.len();
            if n > 0 {
                busy += 1;
                for i in 0..n {
                    let mut p = burst.get_mut(i);
                    let h = p.head_mut();
                    let (a, b) = h[..12].split_at_mut(6);
                    a.swap_with_slice(b);
                }
                let refs: [PacketRef; 32] =
                    std::array::from_fn(|i| if i < n { burst.get(i) } else { PacketRef::from_slice(&[]) });
                let mut done = 0;
                while done < n {
                    let k = to.send(&refs[done..n]);
                    if k == 0 && done + k < n {
                        lost += (n - done) as u64;
                        break;
                    }
                    done += k;
                }
                moved += n as u64;
            }
        }
        if rounds % 4096 == 0 && start.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    let s = start.elapsed().as_secs_f64();
    println!(
        "{function}: {:.2} Mpps per port and direction, burst {:.1}, busy {:.2}, lost {lost}",
        moved as f64 / s / 2e6,
        moved as f64 / busy as f64,
        busy as f64 / rounds as f64 / 2.0
    );
    std::process::exit(0);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.len() > 1 {
        return forward(&args[1], args[2].parse().unwrap(), &args[3], args[4].parse().unwrap());
    }
    let dir = format!("/tmp/near-{}", std::process::id());
    std::fs::create_dir_all(&dir).unwrap();
    let huge = std::env::var("HUGE").is_ok();
    let ring: u32 = std::env::var("RING").map_or(256 << 10, |v| v.parse::<u32>().unwrap() << 10);
    let inject = std::env::var("INJECT").unwrap_or("512".into());
    let broker = Broker::start(Config { hugepages: huge }, |_| {}).unwrap();
    for f in ["a", "b"] {
        broker.listen(f, Broker::bind(format!("{dir}/{f}").as_ref()).unwrap(), 0..1).unwrap();
    }
    for p in ["x", "y"] {
        let e = |f: &str| EndSpec { function: f.into(), port: PortInfo::named(p) };
        broker.add_link(LinkSpec { name: p.into(), ends: [e("a"), e("b")], ring_bytes: ring }).unwrap();
    }
    let exe = std::env::current_exe().unwrap();
    let c: Vec<_> = ["a", "b"]
        .iter()
        .enumerate()
        .map(|(i, f)| {
            std::process::Command::new(&exe).args([f, i.to_string().as_str(), &dir, &inject]).spawn().unwrap()
        })
        .collect();
    for mut c in c {
        c.wait().unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}
