#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headpond_fuzz::json_spans(data));
