"""A Sigstore of our own: an authority, a certificate log and a signature log, with keys made here.

What it signs is verified by the real `sigstore` package against its trusted_root.json; nothing of the
verification is replaced. Formats: RFC 6962 (certificate log), Rekor's hashedrekord 0.0.1, C2SP signed
notes, Sigstore's bundle 0.3 and trusted root 0.1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

COMMUNITY = "huggingface/kernels-community"
WORKFLOW = "build.yaml@refs/heads/main"

_GITHUB = "https://token.actions.githubusercontent.com"
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_FULCIO = "1.3.6.1.4.1.57264.1."
_ORIGIN = "log.example.org"


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class OwnSigstore:
    """One Sigstore. `write_root(path)` gives its root of trust, `sign` its bundles."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    signature_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "example.org")])
        self.root = (
            _builder(name, name, self.authority, self.now - timedelta(days=1), self.now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(_usage(key_cert_sign=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False
            )
            .sign(self.authority, hashes.SHA256())
        )

    def write_root(self, path: Path) -> Path:
        """Its trusted_root.json."""
        valid = {"start": (self.now - timedelta(days=1)).isoformat().replace("+00:00", "Z")}
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_log(self.signature_log, "https://rekor.example.org", valid)],
            "ctlogs": [_log(self.certificate_log, "https://ct.example.org", valid)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "example.org", "commonName": "own"},
                    "uri": "https://fulcio.example.org",
                    "certChain": {"certificates": [{"rawBytes": _b64(self.root.public_bytes(Encoding.DER))}]},
                    "validFor": valid,
                }
            ],
            "timestampAuthorities": [],
        }
        path.write_text(json.dumps(document))
        return path

    def sign(
        self,
        content: bytes,
        *,
        repository: str = COMMUNITY,
        workflow: str = WORKFLOW,
        source: str | None = None,
        signed_at: timedelta = timedelta(),
    ) -> str:
        """A bundle saying that a workflow of a GitHub repository signed these bytes.

        source: the repository that ran the workflow, where it is another than the one that has it.
        """
        key = _key()
        certificate = self._certificate(key, repository, workflow, source or repository)
        signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
        body = json.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {"hash": {"algorithm": "sha256", "value": hashlib.sha256(content).hexdigest()}},
                    "signature": {
                        "content": _b64(signature),
                        "publicKey": {"content": _b64(certificate.public_bytes(Encoding.PEM))},
                    },
                },
            },
            separators=(",", ":"),
        ).encode()
        document = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._log_entry(body, int((self.now + signed_at).timestamp()))],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": _b64(hashlib.sha256(content).digest())},
                "signature": _b64(signature),
            },
        }
        return json.dumps(document)

    def _certificate(
        self, key: ec.EllipticCurvePrivateKey, repository: str, workflow: str, source: str
    ) -> x509.Certificate:
        uri = f"https://github.com/{repository}/.github/workflows/{workflow}"
        builder = (
            _builder(
                x509.Name([]),
                self.root.subject,
                key,
                self.now - timedelta(minutes=5),
                self.now + timedelta(minutes=5),
            )
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
        )
        for number, value in (
            ("1", _GITHUB.encode()),
            ("8", _utf8_string(_GITHUB)),
            ("9", _utf8_string(uri)),
            ("12", _utf8_string(f"https://github.com/{source}")),
        ):
            oid = x509.ObjectIdentifier(_FULCIO + number)
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
        precertificate = builder.sign(self.authority, hashes.SHA256())
        stamp = self._certificate_stamp(precertificate.tbs_certificate_bytes)
        return builder.add_extension(x509.UnrecognizedExtension(_SCT_LIST, stamp), critical=False).sign(
            self.authority, hashes.SHA256()
        )

    def _certificate_stamp(self, precertificate: bytes) -> bytes:
        """An SCT list (RFC 6962, 3.3) in an OCTET STRING."""
        milliseconds = int(self.now.timestamp()) * 1000
        signed = (
            struct.pack("!BBQH", 0, 0, milliseconds, 1)
            + hashlib.sha256(_public(self.authority)).digest()
            + len(precertificate).to_bytes(3, "big")
            + precertificate
            + struct.pack("!H", 0)
        )
        signature = self.certificate_log.sign(signed, ec.ECDSA(hashes.SHA256()))
        log_id = hashlib.sha256(_public(self.certificate_log)).digest()
        stamp = struct.pack("!B32sQHBBH", 0, log_id, milliseconds, 0, 4, 3, len(signature)) + signature
        stamps = struct.pack("!H", len(stamp)) + stamp
        return _der(0x04, struct.pack("!H", len(stamps)) + stamps)

    def _log_entry(self, body: bytes, time: int) -> dict[str, object]:
        """The only entry of a log: its leaf is the root of the tree."""
        log_id = hashlib.sha256(_public(self.signature_log)).digest()
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{_ORIGIN}\n1\n{_b64(root)}\n"
        mark = log_id[:4] + self.signature_log.sign(note.encode(), ec.ECDSA(hashes.SHA256()))
        promised = json.dumps(
            {"body": _b64(body), "integratedTime": time, "logID": log_id.hex(), "logIndex": 0},
            separators=(",", ":"),
            sort_keys=True,
        ).encode()
        promise = self.signature_log.sign(promised, ec.ECDSA(hashes.SHA256()))
        return {
            "logIndex": "0",
            "logId": {"keyId": _b64(log_id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": _b64(promise)},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 {_ORIGIN} {_b64(mark)}\n"},
            },
            "canonicalizedBody": _b64(body),
        }


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _usage(digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature, False, False, False, False, key_cert_sign, key_cert_sign, False, False
    )


def _log(key: ec.EllipticCurvePrivateKey, url: str, valid: dict[str, str]) -> dict[str, object]:
    public = _public(key)
    return {
        "baseUrl": url,
        "hashAlgorithm": "SHA2_256",
        "publicKey": {
            "rawBytes": _b64(public),
            "keyDetails": "PKIX_ECDSA_P256_SHA_256",
            "validFor": valid,
        },
        "logId": {"keyId": _b64(hashlib.sha256(public).digest())},
    }


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _utf8_string(text: str) -> bytes:
    return _der(0x0C, text.encode())


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size, "big") + content
