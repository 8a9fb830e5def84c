//! What the live display shows: a table of ports, and below it the function of the one that is chosen.

use super::{port_name, rates, state};
use crate::out::{bytes, nanoseconds, number, plain};
use node::control::{FunctionStats, LatencyStats, PortStats, Stats};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Block, Cell, Paragraph, Row, Table, TableState},
};

/// By what the ports are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Name,
    Rate,
    Drops,
}

/// The display: two snapshots, and what was chosen.
#[derive(Default)]
pub struct View {
    before: Stats,
    now: Stats,
    order: Order,
    held: bool,
    chosen: TableState,
}

impl View {
    /// Takes the next snapshot, unless the picture is held.
    pub fn take(&mut self, stats: Stats) {
        if !self.held {
            self.before = std::mem::replace(&mut self.now, stats);
        }
    }

    /// Moves the choice by some rows.
    pub fn move_by(&mut self, rows: isize) {
        let last = self.now.ports.len().saturating_sub(1);
        let chosen = self.chosen.selected().unwrap_or(0);
        self.chosen.select(Some(chosen.saturating_add_signed(rows).min(last)));
    }

    pub fn next_order(&mut self) {
        self.order = match self.order {
            Order::Name => Order::Rate,
            Order::Rate => Order::Drops,
            Order::Drops => Order::Name,
        };
    }

    /// Holds the picture, or lets it go on.
    pub fn hold(&mut self) {
        self.held = !self.held;
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, ports, function, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(5), Constraint::Length(9), Constraint::Length(1)])
                .areas(frame.area());
        self.move_by(0);
        frame.render_widget(Paragraph::new(self.heading()).style(Style::new().add_modifier(Modifier::BOLD)), head);
        let sorted = self.sorted();
        self.draw_ports(frame, ports, &sorted);
        let chosen = self.chosen.selected().and_then(|index| sorted.get(index).copied());
        if let Some(of) = chosen.and_then(|index| self.function_of(&self.now.ports[index])) {
            self.draw_function(frame, function, of);
        }
        let order = match self.order {
            Order::Name => "name",
            Order::Rate => "rate",
            Order::Drops => "drops",
        };
        let held = if self.held { " (held)" } else { "" };
        let keys = format!("q end  arrows choose  s order: {order}  space hold{held}");
        frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
    }

    fn heading(&self) -> String {
        let mut slices: Vec<_> = self.now.functions.iter().map(|f| f.slice.as_str()).collect();
        slices.dedup();
        let (functions, ports) = (self.now.functions.len(), self.now.ports.len());
        format!("kaista top: {}, {functions} functions, {ports} ports", slices.join(", "))
    }

    /// Indices of the ports in the order of the display.
    fn sorted(&self) -> Vec<usize> {
        let rates = |index: &usize| rates::port(&self.before, &self.now, &self.now.ports[*index]).unwrap_or_default();
        let mut sorted: Vec<_> = (0..self.now.ports.len()).collect();
        match self.order {
            Order::Name => {}
            Order::Rate => sorted.sort_by(|a, b| {
                let sum = |r: rates::PortRates| r.rx_packets + r.tx_packets;
                sum(rates(b)).total_cmp(&sum(rates(a)))
            }),
            Order::Drops => sorted.sort_by(|a, b| rates(b).drops.total_cmp(&rates(a).drops)),
        }
        sorted
    }

    fn draw_ports(&mut self, frame: &mut Frame<'_>, area: Rect, sorted: &[usize]) {
        let head = ["PORT", "PEER", "STATE", "RX pkt/s", "RX bit/s", "TX pkt/s", "TX bit/s", "DROP/s", "DROPS"];
        let head = Row::new(head).style(Style::new().add_modifier(Modifier::UNDERLINED));
        let rows: Vec<_> = sorted.iter().map(|index| self.port_row(&self.now.ports[*index])).collect();
        let widths = [Constraint::Min(14), Constraint::Min(12), Constraint::Length(7)];
        let widths = widths.into_iter().chain([Constraint::Length(8); 6]);
        let table = Table::new(rows, widths)
            .header(head)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::new());
        frame.render_stateful_widget(table, area, &mut self.chosen);
    }

    fn port_row(&self, port: &PortStats) -> Row<'static> {
        let rates = rates::port(&self.before, &self.now, port);
        let shown = |value: fn(&rates::PortRates) -> f64| rates.as_ref().map_or("-".into(), |r| rate(value(r)));
        let drops: u64 = port.drops.values().sum();
        let is_dropping = rates.is_some_and(|r| r.drops > 0.0);
        let cells = [
            port_name(port, &self.now),
            port.peer.clone().unwrap_or_else(|| "-".into()),
            state(port),
            shown(|r| r.rx_packets),
            shown(|r| r.rx_bits),
            shown(|r| r.tx_packets),
            shown(|r| r.tx_bits),
            shown(|r| r.drops),
            number(drops),
        ];
        let style = match (&port.quarantined, is_dropping, port.attached) {
            (Some(_), ..) => Style::new().fg(Color::Red),
            (None, true, _) => Style::new().fg(Color::Yellow),
            (None, false, false) => Style::new().add_modifier(Modifier::DIM),
            _ => Style::new(),
        };
        Row::new(cells.map(Cell::from)).style(style)
    }

    fn function_of(&self, port: &PortStats) -> Option<&FunctionStats> {
        self.now.functions.iter().find(|f| f.slice == port.slice && f.function == port.function)
    }

    /// Processor, memory, drops by reason, latencies and the function's own counters, those that grow first.
    fn draw_function(&self, frame: &mut Frame<'_>, area: Rect, function: &FunctionStats) {
        let cores = rates::cores(&self.before, &self.now, function).map_or("-".into(), |c| format!("{c:.2}"));
        let memory = function.memory_bytes.map_or("-".into(), bytes);
        let title = format!(" {}/{}: {cores} cores, {memory} ", function.slice, function.function);
        let mut lines: Vec<(f64, String)> = Vec::new();
        for port in self.now.ports.iter().filter(|p| p.slice == function.slice && p.function == function.function) {
            let drops = port.drops.iter().filter(|(_, count)| **count > 0);
            lines.extend(
                drops.map(|(why, count)| (0.0, format!("{} dropped: {} {}", port.port, plain(why), number(*count)))),
            );
        }
        let ports = self.now.ports.iter().filter(|p| p.slice == function.slice && p.function == function.function);
        lines.extend(ports.filter_map(|p| Some((0.0, format!("{} latency: {}", p.port, quantiles(&p.latency?))))));
        for (name, count) in function.counters.iter().filter(|(_, count)| **count > 0) {
            let growth = rates::counter(&self.before, &self.now, function, name).unwrap_or(0.0);
            lines.push((growth, format!("{} {} ({}/s)", plain(name), number(*count), rate(growth))));
        }
        lines.sort_by(|a, b| b.0.total_cmp(&a.0));
        let columns = Layout::horizontal([Constraint::Fill(1); 2]).split(area);
        let block = Block::bordered().title(title);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let height = usize::from(inner.height).max(1);
        for (column, chunk) in lines.chunks(height).take(columns.len()).enumerate() {
            let text: Vec<_> = chunk.iter().map(|(_, text)| Line::from(text.clone())).collect();
            let half = Rect { x: inner.x + column as u16 * (inner.width / 2), width: inner.width / 2, ..inner };
            frame.render_widget(Paragraph::new(text), half);
        }
    }
}

fn quantiles(latency: &LatencyStats) -> String {
    let [p50, p99, max] = [latency.p50_ns, latency.p99_ns, latency.max_ns].map(nanoseconds);
    format!("p50 {p50}, p99 {p99}, max {max}")
}

/// A rate to three digits.
fn rate(value: f64) -> String {
    number(value.round().clamp(0.0, u64::MAX as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::stats;
    use ratatui::{Terminal, backend::TestBackend};

    fn picture(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(110, 17)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content.chunks(110).map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
    }

    #[test]
    fn ports_are_shown_with_their_rates_and_the_chosen_function_below() {
        let mut view = View::default();
        view.take(stats(1_000_000_000, 1000));
        assert!(picture(&mut view).contains("upf/n3 ran/n3 open - - - - - 100"));
        view.take(stats(2_000_000_000, 2_001_000));
        let picture = picture(&mut view);
        assert!(picture.contains("upf/n3 ran/n3 open 2.00 M 1.60 G 1.00 M 800 M 200 k 200 k"), "{picture}");
        assert!(picture.contains("s/upf: 0.50 cores, 64.0 MiB"), "{picture}");
        assert!(picture.contains("uplink.forwarded 2.00 M (2.00 M/s)"), "{picture}");
        assert!(picture.contains("n3 dropped: full 200 k"), "{picture}");
        assert!(picture.contains("n3 latency: p50 700 ns, p99 2.00 us, max 4.00 us"), "{picture}");
    }

    #[test]
    fn a_held_picture_does_not_change() {
        let mut view = View::default();
        view.take(stats(1_000_000_000, 1000));
        view.hold();
        view.take(stats(2_000_000_000, 9000));
        assert_eq!(view.now.at_ns, 1_000_000_000);
        assert!(picture(&mut view).contains("(held)"));
    }

    #[test]
    fn nothing_at_all_can_be_shown() {
        let mut view = View::default();
        view.move_by(5);
        view.next_order();
        assert!(picture(&mut view).contains("0 ports"));
    }
}
