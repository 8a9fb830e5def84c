//! How a load is shared among flows, and in which order their packets then come.

use std::str::FromStr;

use crate::spread::{LEN_MAX, counts, spread};

/// How a load is shared among flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// All have the same, and take turns.
    Uniform,
    /// The flow of rank r, which is its number from 1 on, has 1/r^exponent of what the first has (Zipf's law).
    Zipf {
        /// 0 is uniform; the first of a thousand has an eighth of all with 1.
        exponent: f64,
    },
    /// The first so many have a multiple of the others' load.
    HotUes {
        /// How many.
        count: usize,
        /// How many times the others' load each has.
        times: u32,
    },
    /// Those in every so many-th steering bucket have a multiple of the others' load. A port with that many queues has these
    /// buckets in its first queue, before any is moved.
    HotBuckets {
        /// Buckets whose number this divides are hot.
        one_in: u8,
        /// How many times the others' load each flow in them has.
        times: u32,
    },
}

/// Why a load cannot be shared so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ShareError {
    /// It has another form.
    #[error("{0} is no share; expected uniform, zipf:EXPONENT, hot-ues:COUNTxTIMES or hot-buckets:ONE_INxTIMES")]
    Form(String),
    /// A parameter makes no sense.
    #[error("{what} is {range}, not {value}")]
    Range {
        /// Which parameter.
        what: &'static str,
        /// What it may be.
        range: &'static str,
        /// What it is.
        value: f64,
    },
    /// Nobody, or everybody, is hot.
    #[error("{hot} of {flows} flows are hot: with none or all of them the load is the same for all; {mend}")]
    NotHot {
        /// Flows that are hot.
        hot: usize,
        /// All flows.
        flows: usize,
        /// What to do.
        mend: &'static str,
    },
    /// The order would be too long.
    #[error("an order of {0} packets is over the limit of {LEN_MAX}: use fewer flows or a smaller multiple")]
    Length(u64),
}

impl Share {
    /// The order in which `flows` send, as numbers from 0, to be gone through over and over; `bucket` is the steering bucket
    /// of a flow. Each has its share exactly, or under Zipf's law to one packet of the order. There a flow whose share of the
    /// longest possible order rounds to no packet sends none.
    pub fn order(self, flows: usize, bucket: impl Fn(usize) -> u8) -> Result<Vec<u32>, ShareError> {
        let hot = |is_hot: &dyn Fn(usize) -> bool, times: u32, mend| {
            let counts: Vec<u32> = (0..flows).map(|flow| if is_hot(flow) { times } else { 1 }).collect();
            let hot = (0..flows).filter(|flow| is_hot(*flow)).count();
            let len = counts.iter().map(|count| u64::from(*count)).sum();
            match len {
                _ if hot == 0 || hot == flows => Err(ShareError::NotHot { hot, flows, mend }),
                _ if len > LEN_MAX as u64 => Err(ShareError::Length(len)),
                _ => Ok(spread(&counts)),
            }
        };
        match self {
            Self::Uniform => Ok((0..flows as u32).collect()),
            Self::Zipf { exponent } => Ok(spread(&zipf(exponent, flows))),
            Self::HotUes { count, times } => hot(&|flow| flow < count, times, "have more flows than hot ones"),
            Self::HotBuckets { one_in, times } => {
                let is_hot = |flow| bucket(flow).is_multiple_of(one_in);
                hot(&is_hot, times, "let flows differ in what ports are steered by: TEIDs, or destination addresses")
            }
        }
    }
}

/// How often each flow comes: the lightest [`TAIL`] times, where the order is not too long for that.
fn zipf(exponent: f64, flows: usize) -> Vec<u32> {
    /// The rounding of the lightest flow's share is an eighth of this.
    const TAIL: f64 = 8.0;
    let weights: Vec<f64> = (1..=flows).map(|rank| (rank as f64).powf(-exponent)).collect();
    let lightest = weights.last().copied().unwrap_or(1.0);
    let len = (TAIL * weights.iter().sum::<f64>() / lightest).min(LEN_MAX as f64);
    counts(&weights, len as usize)
}

impl FromStr for Share {
    type Err = ShareError;

    /// `uniform`, `zipf:1.1`, `hot-ues:10x4`, `hot-buckets:8x4`.
    fn from_str(text: &str) -> Result<Self, ShareError> {
        let form = || ShareError::Form(text.to_owned());
        let (kind, parameters) = text.split_once(':').unwrap_or((text, ""));
        let two = || -> Option<(u32, u32)> {
            let (first, times) = parameters.split_once('x')?;
            Some((first.parse().ok()?, times.parse().ok()?))
        };
        let range = |what, range, value, good: bool| {
            if good { Ok(()) } else { Err(ShareError::Range { what, range, value }) }
        };
        match kind {
            "uniform" if parameters.is_empty() => Ok(Self::Uniform),
            "zipf" => {
                let exponent: f64 = parameters.parse().map_err(|_| form())?;
                range("the exponent", "0 to 4", exponent, (0.0..=4.0).contains(&exponent))?;
                Ok(Self::Zipf { exponent })
            }
            "hot-ues" | "hot-buckets" => {
                let (first, times) = two().ok_or_else(form)?;
                range("the multiple", "2 to 10000", times.into(), (2..=10_000).contains(&times))?;
                if kind == "hot-ues" {
                    return Ok(Self::HotUes { count: first as usize, times });
                }
                range("one bucket in", "2 to 128", first.into(), (2..=128).contains(&first))?;
                Ok(Self::HotBuckets { one_in: first as u8, times })
            }
            _ => Err(form()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(share: &str, flows: usize, bucket: impl Fn(usize) -> u8) -> Vec<u64> {
        let order = share.parse::<Share>().expect("a share").order(flows, bucket).expect("an order");
        let mut counts = vec![0; flows];
        order.iter().for_each(|flow| counts[*flow as usize] += 1);
        counts
    }

    #[test]
    fn without_skew_flows_take_turns() {
        assert_eq!(Share::Uniform.order(4, |_| 0), Ok(vec![0, 1, 2, 3]));
    }

    #[test]
    fn zipf_gives_rank_r_its_share() {
        for exponent in [0.0, 0.6, 1.0, 1.5] {
            let counts = counted(&format!("zipf:{exponent}"), 1_000, |_| 0);
            let sum: u64 = counts.iter().sum();
            let weight = |rank: usize| (rank as f64).powf(-exponent);
            let weights: f64 = (1..=1_000).map(weight).sum();
            // Chi-square over ranks. Counts at random would have about as much as there are ranks; exact ones to one packet
            // have hardly any.
            let chi_square: f64 = (1..=1_000)
                .map(|rank| {
                    let expected = weight(rank) / weights * sum as f64;
                    (counts[rank - 1] as f64 - expected).powi(2) / expected
                })
                .sum();
            assert!(chi_square < 50.0, "exponent {exponent}: {chi_square}");
            assert!(counts.iter().all(|count| *count >= 7), "exponent {exponent}");
        }
    }

    #[test]
    fn an_order_that_would_be_too_long_leaves_out_who_has_next_to_nothing() {
        let counts = counted("zipf:3", 2_000, |_| 0);
        assert_eq!(counts.iter().sum::<u64>(), LEN_MAX as u64);
        let first = counts[0] as f64 / LEN_MAX as f64;
        // 1 / zeta(3).
        assert!((first - 0.831_9).abs() < 1e-4, "{first}");
        assert_eq!(counts[1_999], 0);
    }

    #[test]
    fn hot_ues_have_exactly_their_multiple() {
        let counts = counted("hot-ues:10x4", 100, |_| 0);
        assert_eq!(counts, [vec![4; 10], vec![1; 90]].concat());
    }

    #[test]
    fn hot_buckets_are_those_that_a_port_computes() {
        let address = |flow: usize| std::net::Ipv4Addr::from_bits(0x0a3c_0001 + flow as u32);
        let bucket = |flow| port::steering::address_bucket(address(flow).into());
        let counts = counted("hot-buckets:8x4", 4_096, bucket);
        for (flow, count) in counts.iter().enumerate() {
            assert_eq!(*count, if bucket(flow) % 8 == 0 { 4 } else { 1 });
        }
        assert!(counts.iter().filter(|count| **count == 4).count() > 400);
    }

    #[test]
    fn a_skew_that_is_none_is_refused_with_the_remedy() {
        let error =
            |share: &str| share.parse::<Share>().expect("a share").order(100, |_| 0).expect_err("no skew").to_string();
        assert!(error("hot-ues:100x4").contains("100 of 100 flows are hot"), "{}", error("hot-ues:100x4"));
        assert!(error("hot-ues:0x4").contains("more flows than hot ones"));
        assert!(error("hot-buckets:8x4").contains("destination addresses"));
        let long = Share::HotUes { count: 999_999, times: 10_000 }.order(1_000_000, |_| 0);
        assert!(matches!(long, Err(ShareError::Length(9_999_990_001))), "{long:?}");
    }

    #[test]
    fn text_that_names_no_share_is_refused() {
        for text in ["", "zipf", "zipf:x", "hot-ues:4", "hot-ues:x4", "hot-buckets:-1x2", "uniform:1", "even"] {
            assert!(matches!(text.parse::<Share>(), Err(ShareError::Form(_))), "{text}");
        }
        for text in ["zipf:-1", "zipf:nan", "zipf:9", "hot-ues:1x1", "hot-buckets:1x4", "hot-buckets:300x4"] {
            assert!(matches!(text.parse::<Share>(), Err(ShareError::Range { .. })), "{text}");
        }
    }
}
