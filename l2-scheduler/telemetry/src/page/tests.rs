use proptest::prelude::*;

use super::{Adapters, Page, Vocabulary};
use crate::page::FILTER;

mod reference;

const VLLM_IDLE: &[u8] = include_bytes!("../../tests/fixtures/vllm-idle.txt");
const VLLM_LOAD: &[u8] = include_bytes!("../../tests/fixtures/vllm-under-load.txt");
const VLLM_HITS: &[u8] = include_bytes!("../../tests/fixtures/vllm-after-hits.txt");
const VLLM_ASLEEP: &[u8] = include_bytes!("../../tests/fixtures/vllm-asleep.txt");
const VLLM_DP2: &[u8] = include_bytes!("../../tests/fixtures/vllm-dp2-under-load.txt");
const VLLM_LORA: &[u8] = include_bytes!("../../tests/fixtures/vllm-lora-under-load.txt");
const SGLANG_IDLE: &[u8] = include_bytes!("../../tests/fixtures/sglang-idle.txt");
const SGLANG_LOAD: &[u8] = include_bytes!("../../tests/fixtures/sglang-under-load.txt");
const SGLANG_PRIORITY: &[u8] =
    include_bytes!("../../tests/fixtures/sglang-under-load-priority.txt");
const SGLANG_HITS: &[u8] = include_bytes!("../../tests/fixtures/sglang-after-hits.txt");

const VLLM: [&[u8]; 6] = [
    VLLM_IDLE,
    VLLM_LOAD,
    VLLM_HITS,
    VLLM_ASLEEP,
    VLLM_DP2,
    VLLM_LORA,
];
const SGLANG: [&[u8]; 4] = [SGLANG_IDLE, SGLANG_LOAD, SGLANG_PRIORITY, SGLANG_HITS];

/// What the page says, in one line; `-` for what it does not.
fn summary(page: &Page) -> String {
    fn text<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| value.to_string())
    }
    format!(
        "waiting {} running {} kv {} block {} blocks {} tokens {}",
        text(page.waiting),
        text(page.running),
        text(page.kv_use.map(|share| format!("{share:.4}"))),
        text(page.block_size),
        text(page.num_blocks),
        text(page.kv_tokens),
    )
}

fn check(page: &[u8], expected: &str) {
    assert_eq!(
        summary(&Page::parse(page)),
        expected,
        "{}",
        String::from_utf8_lossy(&page[..page.len().min(400)])
    );
}

#[test]
fn recorded_pages_say_what_was_seen() {
    check(
        VLLM_IDLE,
        "waiting 0 running 0 kv 0.0000 block 32 blocks 256 tokens 8192",
    );
    check(
        VLLM_LOAD,
        "waiting 8 running 4 kv 0.0471 block 32 blocks 256 tokens 8192",
    );
    check(
        VLLM_DP2,
        "waiting 4 running 8 kv 0.0627 block 32 blocks 512 tokens 16384",
    );
    check(
        VLLM_LORA,
        "waiting 8 running 4 kv 0.0314 block 32 blocks 256 tokens 8192",
    );
    check(
        SGLANG_IDLE,
        "waiting 0 running 0 kv 0.0000 block 32 blocks 256 tokens 8192",
    );
    check(
        SGLANG_LOAD,
        "waiting 7 running 1 kv 0.0469 block 32 blocks 256 tokens 8192",
    );
    check(
        SGLANG_PRIORITY,
        "waiting 8 running 4 kv 0.0469 block 32 blocks 256 tokens 8192",
    );
    check(
        SGLANG_HITS,
        "waiting 0 running 0 kv 0.0000 block 32 blocks 256 tokens 8192",
    );
}

#[test]
fn sleep_adapters_start_time_context_and_counters_are_read() {
    assert_eq!(Page::parse(VLLM_IDLE).awake, Some(true));
    assert_eq!(Page::parse(VLLM_ASLEEP).awake, Some(false));
    assert_eq!(Page::parse(VLLM_IDLE).prefix_caching, Some(true));
    let lora = Page::parse(VLLM_LORA)
        .adapters
        .expect("adapters are loaded");
    let both = || vec!["la".to_owned(), "lb".to_owned()];
    assert_eq!(
        lora,
        Adapters {
            running: both(),
            waiting: both()
        }
    );
    assert_eq!(
        Page::parse(VLLM_LOAD).start_time_s,
        Some(1.795_984_735_67e9)
    );
    assert_eq!(Page::parse(VLLM_LOAD).counters.cached_tokens, Some(640.0));
    assert_eq!(Page::parse(SGLANG_LOAD).counters.prompt_tokens, Some(541.0));
    assert_eq!(Page::parse(SGLANG_LOAD).max_context, Some(2_048));
    assert_eq!(
        crate::parse(VLLM_LOAD).monotone_counter,
        Page::parse(VLLM_LOAD).counters.generation_tokens
    );
}

#[test]
fn old_names_are_known_and_new_ones_win() {
    check(
        b"vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n",
        "waiting - running - kv 0.5000 block - blocks - tokens -",
    );
    check(
        b"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n",
        "waiting - running - kv 0.2500 block - blocks - tokens -",
    );
    let hits = Page::parse(b"vllm:num_requests_running 1\nvllm:gpu_prefix_cache_hits_total 3\n")
        .counters
        .cached_tokens;
    assert_eq!(hits, Some(3.0));
}

#[test]
fn cache_facts_may_be_unknown() {
    check(
        b"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0\n",
        "waiting - running - kv - block 16 blocks - tokens -",
    );
    check(
        b"vllm:cache_config_info{num_gpu_blocks=\"100\",block_size=\"16\"} 1.0\n",
        "waiting - running - kv - block 16 blocks 100 tokens 1600",
    );
    check(
        b"vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"99999999999999999999999\"} 1.0\n",
        "waiting - running - kv - block - blocks - tokens -",
    );
}

#[test]
fn data_parallel_ranks_of_sglang_are_summed_and_their_copies_are_not() {
    check(
        b"sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 3\nsglang:num_running_reqs{tp_rank=\"1\",dp_rank=\"0\"} 3\n\
          sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 2\nsglang:max_total_num_tokens{dp_rank=\"0\"} 100\n\
          sglang:max_total_num_tokens{dp_rank=\"1\"} 100\nsglang:token_usage{dp_rank=\"0\"} 0.2\nsglang:token_usage{dp_rank=\"1\"} 0.4\n",
        "waiting - running 5 kv 0.3000 block - blocks - tokens 200",
    );
}

#[test]
fn parts_by_priority_are_not_the_total_even_when_they_are_stale() {
    check(
        b"sglang:num_queue_reqs{priority=\"5\"} 20\nsglang:num_queue_reqs{priority=\"\"} 8\n\
          sglang:num_running_reqs{priority=\"5\"} 3\n",
        "waiting 8 running - kv - block - blocks - tokens -",
    );
}

#[test]
fn a_bad_line_empties_its_family_and_no_other() {
    const GOOD: &str = "vllm:num_requests_running{engine=\"0\"} 4.0\n";
    for bad in [
        "vllm:num_requests_waiting{engine=\"0\"} NaN",
        "vllm:num_requests_waiting{engine=\"0\"} +Inf",
        "vllm:num_requests_waiting{engine=\"0\"} ",
        "vllm:num_requests_waiting{engine=\"0} 3.0",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting -1.0",
        "vllm:num_requests_waiting 1e300",
        "vllm:num_requests_waiting 3.0\nvllm:num_requests_waiting{engine=\"1\"} x",
        "vllm:kv_cache_usage_perc 7\nvllm:cache_config_info{block_size=\"32\"",
        "vllm:lora_requests_info{max_lora=} 1",
        "\0\u{fffd}garbage",
    ] {
        for page in [format!("{bad}\n{GOOD}"), format!("{GOOD}{bad}\n")] {
            check(
                page.as_bytes(),
                "waiting - running 4 kv - block - blocks - tokens -",
            );
        }
    }
}

#[test]
fn numbers_come_in_every_notation() {
    check(
        b"vllm:num_requests_running 1.2e+01\n",
        "waiting - running 12 kv - block - blocks - tokens -",
    );
    check(
        b"vllm:kv_cache_usage_perc 5E-2\r\n",
        "waiting - running - kv 0.0500 block - blocks - tokens -",
    );
    check(
        b"vllm:kv_cache_usage_perc 1.0000001\n",
        "waiting - running - kv 1.0000 block - blocks - tokens -",
    );
}

#[test]
fn a_page_without_known_families_has_no_load() {
    for page in [
        "",
        "\n",
        "# EOF\n",
        "process_start_time_seconds 5\n",
        "vllm:num_requests_running 4",
    ] {
        let page = Page::parse(page.as_bytes());
        assert!(!page.has_load() && page.vocabulary.is_none(), "{page:?}");
    }
    assert!(!Page::parse(b"vllm:unknown 1\n").has_load());
    assert_eq!(Page::parse(VLLM_LOAD).vocabulary, Some(Vocabulary::Vllm));
    assert_eq!(
        Page::parse(SGLANG_LOAD).vocabulary,
        Some(Vocabulary::Sglang)
    );
}

#[test]
fn the_filtered_page_says_all_a_full_one_does() {
    for page in VLLM {
        let text = std::str::from_utf8(page).expect("recorded as text");
        let filtered: String = text
            .lines()
            .filter(|line| {
                FILTER
                    .iter()
                    .any(|name| line.split(['{', ' ']).next() == Some(name))
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        assert!(filtered.len() < 6_000);
        assert_eq!(Page::parse(filtered.as_bytes()), Page::parse(page));
    }
}

#[test]
fn recorded_pages_agree_with_a_full_parser() {
    for page in VLLM {
        reference::agree_on_vllm(page);
    }
    for page in SGLANG {
        reference::agree_on_sglang(page);
    }
}

/// Histogram buckets and comments are most of a page and nothing is read from them; without them every cut is tried.
#[test]
fn a_page_cut_anywhere_says_what_its_complete_lines_say() {
    for (page, agree) in [
        (VLLM_DP2, reference::agree_on_vllm as fn(&[u8])),
        (SGLANG_PRIORITY, reference::agree_on_sglang),
    ] {
        let page = reference::without_buckets(page);
        let mut complete = Page::default();
        for cut in 0..=page.len() {
            if page[..cut].ends_with(b"\n") {
                complete = Page::parse(&page[..cut]);
                agree(&page[..cut]);
            }
            assert_eq!(Page::parse(&page[..cut]), complete, "cut at {cut}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(page in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Page::parse(&page);
    }

    #[test]
    fn any_damage_to_a_recorded_page_is_survived(at in 0.0..1.0_f64, with in any::<[u8; 3]>()) {
        let mut page = VLLM_DP2.to_vec();
        let at = (at * (page.len() - 3) as f64) as usize;
        page[at..at + 3].copy_from_slice(&with);
        let _ = Page::parse(&page);
    }

    #[test]
    fn the_order_of_labels_and_lines_does_not_matter(page in reference::shuffled(VLLM_DP2)) {
        prop_assert_eq!(Page::parse(page.as_bytes()), Page::parse(VLLM_DP2));
    }

    #[test]
    fn the_order_of_sglang_labels_and_lines_does_not_matter(page in reference::shuffled(SGLANG_PRIORITY)) {
        prop_assert_eq!(Page::parse(page.as_bytes()), Page::parse(SGLANG_PRIORITY));
    }

    #[test]
    fn generated_series_agree_with_a_full_parser(
        engines in proptest::collection::vec((0_u32..10_000, 0_u32..10_000, 0.0..1.0_f64), 1..6),
    ) {
        let series = engines.iter().enumerate().map(|(index, (running, waiting, kv))| format!(
            "vllm:num_requests_running{{model_name=\"m\",engine=\"{index}\"}} {running}.0\n\
             vllm:num_requests_waiting{{engine=\"{index}\"}} {waiting:e}\n\
             vllm:kv_cache_usage_perc{{engine=\"{index}\"}} {kv:e} 1795985225000\n"
        ));
        let page: String = series.collect();
        reference::agree_on_vllm(page.as_bytes());
    }
}
