//! L1's half of the contract: fixed contexts become the golden bytes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract_tests::{ISSUED_AT, cases, ring};
use expect_test::expect_file;

#[test]
fn contexts_become_the_golden_tokens() {
    for case in cases() {
        let token = ring(case.l1_keys)
            .signer()
            .unwrap()
            .sign(&case.context, ISSUED_AT, case.body);
        let claims = token.split('.').nth(1).unwrap();
        let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        // The claims in clear are there for readers, and to show in a diff what changed.
        expect_file![format!("../golden/{}.claims.json", case.name)]
            .assert_eq(&format!("{claims}\n"));
        expect_file![format!("../golden/{}.jws", case.name)].assert_eq(&format!("{token}\n"));
    }
}
