#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::metrics_page(data));
