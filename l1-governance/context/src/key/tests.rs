use super::*;

const PRIVATE: &str = include_str!("../../tests/fixtures/ed25519.pem");
const PUBLIC: &str = include_str!("../../tests/fixtures/ed25519.pub.pem");
const P256: &str = include_str!("../../tests/fixtures/p256.pem");
const RSA: &str = include_str!("../../tests/fixtures/rsa.pub.pem");
const HEX: &str = "hex:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

#[test]
fn a_ring_has_a_current_and_a_previous_key_of_any_kind() {
    let text =
        format!("# rotated in November\n\nkid: new\nsecret: {HEX}\n  kid: old  \n{PRIVATE}\n");
    let ring = KeyRing::parse(&text).unwrap();
    assert_eq!(
        ring.kids().map(KeyId::as_str).collect::<Vec<_>>(),
        ["new", "old"]
    );
    assert_eq!(ring.signer().unwrap().kid().as_str(), "new");
    let public = KeyRing::parse(&format!("kid: ed\n{PUBLIC}")).unwrap();
    assert_eq!(public.signer().unwrap_err(), KeyError::CannotSign);
}

#[test]
fn hex_and_base64_in_every_alphabet_are_the_same_secret() {
    let bytes: Vec<u8> = (0xe0..=0xff).collect();
    let hex = "E0E1E2E3E4E5E6E7E8E9EAEBECEDEEEFF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF";
    for text in [
        STANDARD.encode(&bytes),
        URL_SAFE.encode(&bytes),
        URL_SAFE_NO_PAD.encode(&bytes),
    ] {
        assert_eq!(from_base64(&text).as_ref(), Some(&bytes), "{text}");
    }
    assert_eq!(from_hex(hex), Some(bytes));
}

#[test]
fn a_bad_key_file_names_the_line_and_what_to_write() {
    let cases = [
        (String::new(), "the key file has no key; write `kid: NAME`"),
        ("# only a comment\n".to_owned(), "the key file has no key"),
        (
            "secret: hex:00\n".to_owned(),
            "line 1: expected `kid: NAME`",
        ),
        (
            "kid:\nsecret: hex:00".to_owned(),
            "line 1: the kid must not be empty",
        ),
        (
            "kid: a b\n".to_owned(),
            "line 1: the kid has a character at byte 1",
        ),
        ("\nkid: a\n".to_owned(), "line 2: the key `a` has no secret"),
        (
            "kid: a\nkid: b\n".to_owned(),
            "line 2: expected `secret: hex:...`",
        ),
        (
            "kid: a\nsecret: hex:0g\n".to_owned(),
            "line 2: expected valid hexadecimal",
        ),
        (
            "kid: a\nsecret: hex:000\n".to_owned(),
            "line 2: expected valid hexadecimal",
        ),
        (
            "kid: a\nsecret: base64:!!\n".to_owned(),
            "line 2: expected valid hexadecimal",
        ),
        (
            "kid: a\nsecret: 0011\n".to_owned(),
            "line 2: expected `secret: hex:...`",
        ),
        (
            "kid: a\nsecret: hex:00112233\n".to_owned(),
            "line 2: the secret has 4 bytes; at least 32",
        ),
        (
            "kid: a\nsecret: base64:\n".to_owned(),
            "line 2: the secret has 0 bytes",
        ),
        (
            format!("kid: a\nsecret: {HEX}\nkid: a\nsecret: {HEX}"),
            "line 3: the kid `a` is used twice",
        ),
        (
            format!("kid: a\nsecret: {HEX}\nkid: b\nsecret: {HEX}\nkid: c\nsecret: {HEX}"),
            "line 5: a third key; a key file holds the current key",
        ),
        (
            format!("kid: a\n{P256}"),
            "line 2: this is not an Ed25519 key",
        ),
        (
            format!("kid: a\n{RSA}"),
            "line 2: this is not an Ed25519 key",
        ),
        (
            "kid: a\n-----BEGIN PRIVATE KEY-----\nAAAA\n".to_owned(),
            "line 2: expected a PEM block that ends",
        ),
        (
            "kid: a\n-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----".to_owned(),
            "line 2: this is not an Ed25519 key",
        ),
    ];
    for (text, expected) in cases {
        let error = KeyRing::parse(&text)
            .map(|ring| ring.keys.len())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_public_key_that_is_too_short_is_refused_and_does_not_panic() {
    // SubjectPublicKeyInfo of Ed25519 with a bit string of three bytes.
    let der = [
        0x30, 0x0d, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x04, 0x00, 1, 2, 3,
    ];
    let pem = format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----",
        STANDARD.encode(der)
    );
    assert_eq!(
        Key::ed25519_pem(&pem).map(|_| ()),
        Err(KeyError::NotEd25519)
    );
}

#[test]
fn nothing_printable_shows_a_secret() {
    let secret = "canary-canary-canary-canary-canary";
    let text = format!(
        "kid: visible\nsecret: base64:{}\nkid: ed\n{PRIVATE}",
        STANDARD.encode(secret)
    );
    let ring = KeyRing::parse(&text).unwrap();
    let private_line = PRIVATE.lines().nth(1).unwrap();
    let shown = format!(
        "{ring:?} {:?} {:?}",
        ring.signer().unwrap(),
        ring.verifier(PoolName::new("p").unwrap())
    );
    assert!(shown.contains("visible"), "{shown}");
    for hidden in [
        secret,
        &STANDARD.encode(secret),
        private_line,
        "99, 97, 110, 97, 114, 121",
    ] {
        assert!(!shown.contains(hidden), "{shown}");
    }
}
