//! What reading one page costs: 100 endpoints at 50 ms are 2,000 pages a second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine_telemetry::Page;
use engine_telemetry::page::FILTER;

const VLLM: &str = include_str!("../tests/fixtures/vllm-under-load.txt");
const SGLANG: &str = include_str!("../tests/fixtures/sglang-under-load.txt");

fn pages(criterion: &mut Criterion) {
    let wanted = |line: &&str| {
        FILTER
            .iter()
            .any(|name| line.split(['{', ' ']).next() == Some(name))
    };
    let filtered: String = VLLM
        .lines()
        .filter(wanted)
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut group = criterion.benchmark_group("page");
    for (name, page) in [
        ("vllm full", VLLM),
        ("vllm filtered", &filtered),
        ("sglang full", SGLANG),
    ] {
        group.throughput(Throughput::Bytes(page.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| Page::parse(black_box(page.as_bytes())));
        });
    }
    group.finish();
}

criterion_group!(benches, pages);
criterion_main!(benches);
