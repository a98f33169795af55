//! The signatures of tickets, checked with `ring`, which all of the gateway uses, behind the JWT library.
//!
//! 1. ES256 and EdDSA alone; nothing here can sign, and no shared secret is ever a key.
//! 2. It is put in place once for the process. Where an embedder had another in place before, that stays.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey};
use ring::signature::{ECDSA_P256_SHA256_FIXED, ED25519, UnparsedPublicKey, VerificationAlgorithm};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// To be called before a ticket is looked at.
pub(super) fn install() {
    // A second time it is there already.
    let _ = PROVIDER.install_default();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let (family, ring): (_, &'static dyn VerificationAlgorithm) = match algorithm {
        Algorithm::ES256 => (AlgorithmFamily::Ec, &ECDSA_P256_SHA256_FIXED),
        Algorithm::EdDSA => (AlgorithmFamily::Ed, &ED25519),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    if key.family() != family {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let key = UnparsedPublicKey::new(ring, key.try_get_as_bytes()?.to_vec());
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: UnparsedPublicKey<Vec<u8>>,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        self.key.verify(message, signature).map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
