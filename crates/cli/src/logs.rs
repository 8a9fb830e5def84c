//! `kaista logs`: what a function wrote.

use crate::{args::Logs, follow::strange, outcome::Outcome};
use node::{
    control::{Client, Event, Request},
    paths::Paths,
};
use std::{
    io::{self, Write},
    process::ExitCode,
};

pub fn run(args: &Logs) -> Outcome {
    let request = Request::Logs { function: args.function.clone(), lines: args.tail, follow: args.follow };
    let mut stream = Client::new(Paths::from_env()).start(&request, &[])?;
    loop {
        match stream.next()?.0 {
            Event::Line { at_ns, error, text } => {
                let time = if args.timestamps { format!("{} ", timestamp(at_ns)) } else { String::new() };
                let line = format!("{time}{text}\n");
                if error {
                    io::stderr().lock().write_all(line.as_bytes())
                } else {
                    io::stdout().lock().write_all(line.as_bytes())
                }?;
            }
            Event::Done(_) => return Ok(ExitCode::SUCCESS),
            other => return Err(strange(&other)),
        }
    }
}

/// RFC 3339 in UTC, to the microsecond.
fn timestamp(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = nanoseconds / 1000 % 1_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The Gregorian date so many days after 1970-01-01, counted in years that begin in March.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_utc() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(timestamp(951_827_696_789_012_345), "2000-02-29T12:34:56.789012Z");
        assert_eq!(timestamp(1_735_689_599_000_000_000), "2024-12-31T23:59:59.000000Z");
    }
}
