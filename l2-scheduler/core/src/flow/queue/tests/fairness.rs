//! What backlogged flows of one band get of it.

use super::*;
use crate::flow::fair::Ranking;

/// Serves a band whose flows always have something waiting; knows what each was served.
struct Shop {
    queue: Queue,
    config: FlowConfig,
    now: Timestamp,
    weights: Vec<u32>,
    /// What the requests of a flow cost, in turn, and how soon they are wanted.
    costs: Vec<Vec<(u64, u64)>>,
    served: Vec<u64>,
    pushed: u64,
    largest_quantum: u64,
}

impl Shop {
    fn new(order: FairOrder, weights: &[u32], costs: &[Vec<(u64, u64)>]) -> Self {
        Self {
            queue: Queue::new(),
            config: FlowConfig {
                order,
                ..FlowConfig::default()
            },
            now: Timestamp(1_000_000_000),
            weights: weights.to_vec(),
            costs: costs.to_vec(),
            served: vec![0; weights.len()],
            pushed: 0,
            largest_quantum: 0,
        }
    }

    fn push(&mut self, flow: usize) {
        let costs = &self.costs[flow];
        let (cost, deadline_ms) = costs[self.pushed as usize % costs.len()];
        let request = request(self.pushed, Band(0), flow as u8, self.weights[flow], 1);
        self.pushed += 1;
        let mut waiting = Waiting::new(Box::new(request), model(0), self.now);
        waiting.deadline = self.now + Duration::from_millis(deadline_ms);
        waiting.cost = cost * MICRO;
        self.queue.push(self.now, &self.config, waiting);
    }

    /// Takes the first `ahead` of the order, each replaced by another of its flow.
    fn serve(&mut self, ahead: usize) {
        self.now += Duration::from_millis(50);
        if self.config.order == FairOrder::Lag {
            self.queue.doomed(self.now, Band(0));
        }
        let mut picks = Vec::new();
        self.queue.order(self.now, &self.config, ahead, &mut picks);
        if let Ranking::Lag { quantum, .. } = self.queue.tiers()[0].time.ranking {
            self.largest_quantum = self.largest_quantum.max(quantum);
        }
        for pick in picks {
            let cost = self.queue.get(pick.place).expect("it waits").cost;
            let taken = self.queue.take(self.now, &self.config, pick.place, cost);
            let (waiting, charge) = taken.expect("it waits");
            let flow = (0..self.weights.len())
                .find(|flow| flow_id(*flow as u8) == waiting.request.fairness)
                .expect("one of ours");
            self.served[flow] += cost;
            self.queue.settle(self.now, charge, cost);
            self.push(flow);
        }
    }

    fn service_per_weight(&self) -> Vec<u64> {
        let each = self.served.iter().zip(&self.weights);
        each.map(|(served, weight)| served / u64::from(*weight))
            .collect()
    }

    /// Most that two flows may be apart.
    fn bound(&self, ahead: u64) -> u64 {
        let largest = |flow: usize| {
            let cost = self.costs[flow].iter().map(|(cost, _)| *cost).max();
            cost.unwrap_or(0) * MICRO / u64::from(self.weights[flow])
        };
        let mut each: Vec<u64> = (0..self.weights.len()).map(largest).collect();
        each.sort_unstable();
        // Whole parts of the cost per weight are lost by rounding.
        each.iter().rev().take(2).sum::<u64>() + self.largest_quantum + ahead
    }
}

fn backlog() -> impl Strategy<Value = Vec<(u32, Vec<(u64, u64)>)>> {
    let requests = prop::collection::vec((1..5000u64, 100..20_000u64), 1..6);
    prop::collection::vec((1..5u32, requests), 2..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn backlogged_flows_are_never_far_apart(
        flows in backlog(), ahead in prop::sample::select(vec![1usize, 4, 16]),
        order in prop::sample::select(vec![FairOrder::Lag, FairOrder::Strict]),
    ) {
        let weights: Vec<u32> = flows.iter().map(|(weight, _)| *weight).collect();
        let costs: Vec<_> = flows.iter().map(|(_, costs)| costs.clone()).collect();
        let mut shop = Shop::new(order, &weights, &costs);
        for flow in 0..weights.len() {
            // As many as one look may take of one flow.
            (0..=ahead).for_each(|_| shop.push(flow));
        }
        for _ in 0..300 / ahead {
            shop.serve(ahead);
            let had = shop.service_per_weight();
            let (least, most) = (had.iter().min().expect("two"), had.iter().max().expect("two"));
            let bound = shop.bound(300);
            prop_assert!(most - least <= bound, "{had:?}: {} apart, bound {bound}", most - least);
        }
    }
}

#[test]
fn weights_of_one_two_and_four_get_so_much() {
    for order in [FairOrder::Strict, FairOrder::Lag] {
        // Those with the least weight ask for most and are wanted soonest.
        let costs = [
            vec![(9000, 100)],
            vec![(700, 3000)],
            vec![(1500, 9000), (90, 9000)],
        ];
        let mut shop = Shop::new(order, &[1, 2, 4], &costs);
        for flow in 0..3 {
            (0..4).for_each(|_| shop.push(flow));
        }
        for _ in 0..20_000 {
            shop.serve(1);
        }
        let all: u64 = shop.served.iter().sum();
        for (served, weight) in shop.served.iter().zip([1.0, 2.0, 4.0]) {
            let share = *served as f64 / all as f64 * 7.0 / weight;
            assert!(
                (0.98..1.02).contains(&share),
                "{order:?}: {:?}",
                shop.served
            );
        }
    }
}

#[test]
fn who_was_away_comes_back_without_credit() {
    for order in [FairOrder::Strict, FairOrder::Lag] {
        let mut shop = Shop::new(order, &[1, 1], &[vec![(100, 1000)], vec![(100, 1000)]]);
        shop.push(0);
        (0..1000).for_each(|_| shop.serve(1));
        shop.push(1);
        let before = shop.served.clone();
        (0..200).for_each(|_| shop.serve(1));
        let since = [shop.served[0] - before[0], shop.served[1] - before[1]];
        assert!(
            since[0].abs_diff(since[1]) <= 200 * MICRO + shop.largest_quantum,
            "{order:?}: {since:?}"
        );
    }
}

#[test]
fn while_there_is_enough_only_deadlines_count() {
    let costs = [vec![(5000, 100)], vec![(1, 200)]];
    let mut shop = Shop::new(FairOrder::Lag, &[1, 1], &costs);
    for _ in 0..20 {
        shop.push(0);
        shop.push(1);
    }
    let mut picks = Vec::new();
    let config = FlowConfig::default();
    shop.queue.order(shop.now, &config, 40, &mut picks);
    let deadlines: Vec<_> = picks
        .iter()
        .map(|pick| shop.queue.get(pick.place).expect("it waits").deadline)
        .collect();
    assert!(deadlines.is_sorted() && deadlines.len() == 40);
}

#[test]
fn newest_first_loses_nobody() {
    for ahead in [1, 8, 64] {
        let mut shop = Shop::new(FairOrder::Lag, &[1], &[vec![(10, 1000)]]);
        (0..40).for_each(|_| shop.push(0));
        shop.now += Duration::from_secs(50);
        let take = |shop: &mut Shop| {
            let mut picks = Vec::new();
            shop.queue.order(shop.now, &shop.config, ahead, &mut picks);
            let pick = picks.first()?;
            let taken = shop.queue.take(shop.now, &shop.config, pick.place, MICRO);
            let (waiting, charge) = taken.expect("it waits");
            shop.queue.settle(shop.now, charge, MICRO);
            Some(waiting.request.key.0)
        };
        let mut order = Vec::new();
        while let Some(key) = take(&mut shop) {
            order.push(key);
            shop.now += Duration::from_millis(500);
        }
        // Four seconds of long waits turn the order; nobody is served twice or never.
        assert_eq!(order[8..11], [8, 39, 38], "{order:?}");
        order.sort_unstable();
        assert_eq!(order, (0..40).collect::<Vec<_>>());
        assert!(
            !shop
                .queue
                .tiers()
                .iter()
                .any(|tier| tier.codel.newest_first())
        );
    }
}
