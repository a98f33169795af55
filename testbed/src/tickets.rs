//! Tickets for tunnels: minted as a platform's api would mint them, and checked again as a node does.
//!
//! Signed tokens (JWT, ES256) with keys that are made here, made anew on demand and published as a JWKS. It
//! shares no line with the gateway's own check of tickets.
//!
//! 1. A node takes a ticket once, for itself, within its time, and only if a published key has signed it.
//! 2. Nothing here is for production: the keys are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::clock::unix_ms;

/// The audience that gateways take by default.
pub const AUDIENCE: &str = "gateway";

/// What a ticket is to say.
#[derive(Debug, Clone, PartialEq)]
pub struct TicketSpec {
    pub audience: Value,
    pub subject: String,
    pub node: String,
    /// Seconds from now, either way.
    pub issued_in: f64,
    pub expires_in: f64,
    pub id: String,
}

impl TicketSpec {
    /// A good one for a node, of the caller `ada`.
    pub fn new(node: &str) -> Self {
        Self {
            audience: json!(AUDIENCE),
            subject: "ada".to_owned(),
            node: node.to_owned(),
            issued_in: 0.0,
            expires_in: 30.0,
            id: Uuid::new_v4().to_string(),
        }
    }
}

struct Keys {
    /// The name, and the pair; the last signs.
    pairs: Vec<(String, EcdsaKeyPair)>,
}

/// Who signs tickets.
pub struct TicketMint {
    keys: Mutex<Keys>,
    random: SystemRandom,
}

impl std::fmt::Debug for TicketMint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketMint")
    }
}

impl Default for TicketMint {
    fn default() -> Self {
        let mint = Self { keys: Mutex::new(Keys { pairs: Vec::new() }), random: SystemRandom::new() };
        mint.rotate();
        mint
    }
}

impl TicketMint {
    /// Signs with a new key from now on; those before stay published. Gives its name.
    pub fn rotate(&self) -> String {
        self.rotate_shown().0
    }

    /// The same, and shows the key (PKCS#8), for callers in another language.
    pub fn rotate_shown(&self) -> (String, Vec<u8>) {
        let name = format!("key-{}", Uuid::new_v4().simple());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.random)
            .expect("a key can be made");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &self.random)
            .expect("it is a key");
        self.locked().pairs.push((name.clone(), pair));
        (name, pkcs8.as_ref().to_vec())
    }

    /// Publishes the key that signs alone.
    pub fn retire_old(&self) {
        let mut keys = self.locked();
        let newest = keys.pairs.len() - 1;
        keys.pairs.drain(..newest);
    }

    /// What is published.
    pub fn jwks(&self) -> String {
        let keys = self.locked();
        let keys: Vec<Value> = keys
            .pairs
            .iter()
            .map(|(name, pair)| {
                // 4, then x and y.
                let point = pair.public_key().as_ref();
                let (x, y) = point[1..].split_at(32);
                let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
                json!({ "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": name,
                        "x": text(x), "y": text(y) })
            })
            .collect();
        json!({ "keys": keys }).to_string()
    }

    /// A ticket for a node, good for 30 s.
    pub fn mint(&self, node: &str) -> String {
        self.mint_as(&TicketSpec::new(node))
    }

    /// A ticket that says this, signed well.
    pub fn mint_as(&self, spec: &TicketSpec) -> String {
        let name = self.locked().pairs.last().map(|(name, _)| name.clone()).unwrap_or_default();
        self.mint_with(&json!({ "alg": "ES256", "typ": "JWT", "kid": name }), &claims(spec))
    }

    /// A ticket with any header and any claims, signed by the newest key.
    pub fn mint_with(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let keys = self.locked();
        let (_, pair) = keys.pairs.last().expect("there is a key");
        let signature = pair.sign(&self.random, signed.as_bytes()).expect("it signs");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn public_key(&self, name: &str) -> Option<Vec<u8>> {
        let keys = self.locked();
        let (_, pair) = keys.pairs.iter().find(|(known, _)| known == name)?;
        Some(pair.public_key().as_ref().to_vec())
    }

    fn locked(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claims of a ticket.
pub fn claims(spec: &TicketSpec) -> Value {
    let at = |seconds: f64| unix_ms() as f64 / 1000.0 + seconds;
    json!({
        "aud": spec.audience,
        "sub": spec.subject,
        "node": spec.node,
        "iat": at(spec.issued_in),
        "exp": at(spec.expires_in),
        "jti": spec.id,
    })
}

/// A node's own check of tickets.
#[derive(Debug, Default)]
pub struct TicketCheck {
    used: BTreeSet<String>,
}

impl TicketCheck {
    /// Takes a ticket that is shown to `node`; the error says what is wrong.
    pub fn take(&mut self, mint: &TicketMint, ticket: &str, node: &str) -> Result<(), &'static str> {
        let mut parts = ticket.rsplitn(2, '.');
        let (Some(signature), Some(signed)) = (parts.next(), parts.next()) else {
            return Err("the ticket is no token");
        };
        let (header, body) = signed.split_once('.').ok_or("the ticket is no token")?;
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "the ticket is no token");
        let parsed = |bytes: Vec<u8>| -> Result<BTreeMap<String, Value>, &'static str> {
            serde_json::from_slice(&bytes).map_err(|_| "the ticket is no token")
        };
        let header = parsed(decoded(header)?)?;
        let claims = parsed(decoded(body)?)?;
        if header.get("alg") != Some(&json!("ES256")) {
            return Err("the ticket is signed in another way");
        }
        let name = header.get("kid").and_then(Value::as_str).unwrap_or_default();
        let key = mint.public_key(name).ok_or("the ticket's key is not known")?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key)
            .verify(signed.as_bytes(), &decoded(signature)?)
            .map_err(|_| "the ticket's signature is wrong")?;
        if claims.get("node").and_then(Value::as_str) != Some(node) {
            return Err("the ticket is for another node");
        }
        let expires = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
        if expires * 1000.0 <= unix_ms() as f64 {
            return Err("the ticket has expired");
        }
        let id = claims.get("jti").and_then(Value::as_str).ok_or("the ticket has no id")?;
        if !self.used.insert(id.to_owned()) {
            return Err("the ticket was used before");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_takes_a_ticket_once_and_for_itself() {
        let (mint, mut check) = (TicketMint::default(), TicketCheck::default());
        let ticket = mint.mint("n1");
        assert_eq!(check.take(&mint, &ticket, "n2"), Err("the ticket is for another node"));
        assert_eq!(check.take(&mint, &ticket, "n1"), Ok(()));
        assert_eq!(check.take(&mint, &ticket, "n1"), Err("the ticket was used before"));
        let old = mint.mint_as(&TicketSpec { expires_in: -1.0, ..TicketSpec::new("n1") });
        assert_eq!(check.take(&mint, &old, "n1"), Err("the ticket has expired"));
        let fresh = mint.mint("n1");
        mint.rotate();
        assert_eq!(check.take(&mint, &fresh, "n1"), Ok(()));
        let retired = mint.mint("n1");
        mint.rotate();
        mint.retire_old();
        assert_eq!(check.take(&mint, &retired, "n1"), Err("the ticket's key is not known"));
    }
}
