"""Receipts: signed statements of what was asked and answered, which anybody who has the public key can check.

A receipt is a JSON Web Signature (RFC 7515, compact) by Ed25519 (RFC 8037) over a statement that is JSON. The statement
has digests alone of request and answer: SHA-256 over their canonical JSON (RFC 8785), so that neither the order of
fields nor white space matters.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
import rfc8785
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)


class ReceiptError(ValueError):
    """Keys that can't be used, a receipt that is not genuine, or what there can be no receipt of. It is one line."""


OF_THE_COMPUTATION = frozenset({"id", "created", "usage", "meta", "provenance", "receipt"})
"""The fields of an answer that say who computed it, when and at which cost. Its digest is of all others."""

OF_THE_DELIVERY = frozenset(
    {
        "timeout",
        "on_timeout",
        "priority",
        "expires_in",
        "metadata",
        "webhook",
        "return_provenance",
        "return_receipt",
    }
)
"""The fields of a request that change no number of its answer. Its digest is of all others that are not null."""

_ALGORITHM = "EdDSA"
_TYPE = "scoreline-receipt+jws"
_BLOCK = re.compile(r"-----BEGIN (PRIVATE|PUBLIC) KEY-----.*?-----END \1 KEY-----", re.DOTALL)


def digest_of_request(body: Mapping[str, Any]) -> str:
    """Return the digest of what a request asks. Raises ReceiptError."""
    return _digest({name: value for name, value in body.items() if name not in OF_THE_DELIVERY and value is not None})


def _digest(value: object) -> str:
    """Return the SHA-256 of a JSON value in hexadecimal digits. Raises ReceiptError for what RFC 8785 can't write."""
    try:
        return hashlib.sha256(rfc8785.dumps(value)).hexdigest()  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:  # also of texts with half a surrogate pair
        raise ReceiptError(f"it has no canonical JSON (RFC 8785): {error}") from None


def digest_of_answer(answer: Mapping[str, Any]) -> str:
    """Return the digest of what an answer says."""
    return _digest({name: value for name, value in answer.items() if name not in OF_THE_COMPUTATION})


def new_key() -> str:
    """Return a private key in PEM, as ``openssl genpkey -algorithm ed25519`` writes one."""
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@dataclass(frozen=True, slots=True, eq=False)
class ReceiptKeys:
    """The keys of a deployment: the first private one signs, and receipts of all of them can be verified."""

    signing: Ed25519PrivateKey
    public: Mapping[str, Ed25519PublicKey]  # by their ids

    @classmethod
    def read(cls, pem: str) -> ReceiptKeys:
        """Read blocks of PEM, each an Ed25519 key, private or public. Raises ReceiptError."""
        private: list[Ed25519PrivateKey] = []
        public: list[Ed25519PublicKey] = []
        blocks = list(_BLOCK.finditer(pem))
        if pem.count("-----BEGIN ") != len(blocks):
            raise ReceiptError("each block of PEM must be a PRIVATE KEY that is not encrypted, or a PUBLIC KEY")
        for block in blocks:
            text = block.group().encode()
            try:
                key = load_pem_private_key(text, None) if block[1] == "PRIVATE" else load_pem_public_key(text)
            except (ValueError, TypeError, UnsupportedAlgorithm):
                raise ReceiptError(f"a block of PEM with a {block[1].lower()} key can't be read") from None
            if isinstance(key, Ed25519PrivateKey):
                private.append(key)
                key = key.public_key()
            if not isinstance(key, Ed25519PublicKey):
                raise ReceiptError("a key is not an Ed25519 key")
            public.append(key)
        if not private:
            raise ReceiptError("there is no private key in PEM: make one with  openssl genpkey -algorithm ed25519")
        return cls(private[0], {_id_of(key): key for key in public})

    def sign(self, statement: Mapping[str, Any]) -> str:
        """Return the receipt that states something."""
        headers = {"kid": _id_of(self.signing.public_key()), "typ": _TYPE}
        return jwt.PyJWS().encode(rfc8785.dumps(dict(statement)), self.signing, _ALGORITHM, headers)

    def published(self) -> dict[str, Any]:
        """Return the public keys as a JSON Web Key Set (RFC 7517)."""
        return {"keys": [_jwk(key) | {"kid": key_id, "use": "sig"} for key_id, key in self.public.items()]}


def _jwk(key: Ed25519PublicKey) -> dict[str, str]:
    raw = base64.urlsafe_b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).rstrip(b"=").decode()
    return {"crv": "Ed25519", "kty": "OKP", "x": raw}


def _id_of(key: Ed25519PublicKey) -> str:
    """Return the thumbprint of a key (RFC 7638)."""
    thumbprint = hashlib.sha256(rfc8785.dumps(_jwk(key))).digest()
    return base64.urlsafe_b64encode(thumbprint).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Statement:
    """What a receipt states."""

    key_id: str  # of the key that signed it
    job: str  # the id of the job that computed the answer
    finished_at: int  # when that job ended, in Unix seconds
    path: str  # where the request was sent
    request: str  # its digest
    answer: str  # the digest of the answer
    provenance: Sequence[Mapping[str, Any] | None]  # what computed it; None stands for a version that recorded nothing

    def check_request(self, body: Mapping[str, Any]) -> None:
        """Raise ReceiptError unless a body is the request that was answered."""
        if digest_of_request(body) != self.request:
            raise ReceiptError("the receipt is of another request")

    def check_answer(self, answer: Mapping[str, Any]) -> None:
        """Raise ReceiptError unless this is what was answered."""
        if digest_of_answer(answer) != self.answer:
            raise ReceiptError("the receipt is of another answer")

    def check_repetition(self, answer: Mapping[str, Any]) -> None:
        """Raise ReceiptError unless an answer that was computed anew, with its provenance, is the same to the bit."""
        if digest_of_answer(answer) == self.answer:
            return
        given = (self.provenance, answer.get("provenance"))
        ones, others = ([one or {} for one in side or ()] for side in given)
        names = dict.fromkeys(name for one in (*ones, *others) for name in one)
        sides = {name: [[one.get(name) for one in side] for side in (ones, others)] for name in names}
        differ = [
            f"{name} was {_shown(one)} and is {_shown(other)}" for name, (one, other) in sides.items() if one != other
        ]
        why = "; ".join(differ) or "and nothing in its provenance does"
        raise ReceiptError(f"the answer that was computed again differs: {why}")


def verified(receipt: str, published: Mapping[str, Any]) -> Statement:
    """Return what a receipt states. published: a JSON Web Key Set. Raises ReceiptError if no key of it has signed."""
    try:
        key_id = str(jwt.get_unverified_header(receipt).get("kid"))
        keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(dict(published)).keys}
        if key_id in keys:
            found = jwt.PyJWS().decode_complete(receipt, keys[key_id], algorithms=[_ALGORITHM])
            stated = json.loads(found["payload"])
            if found["header"].get("typ") != _TYPE:
                raise ValueError("it is a signature of something else")
            return Statement(
                key_id=key_id,
                job=stated["job"],
                finished_at=stated["finished_at"],
                path=stated["path"],
                request=stated["request_sha256"],
                answer=stated["answer_sha256"],
                provenance=stated["provenance"],
            )
    except (jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
        raise ReceiptError(f"the receipt is not genuine: {error}") from None
    raise ReceiptError("the receipt was signed with a key that is not published")


def _shown(values: Sequence[Any]) -> str:
    return json.dumps(values[0] if len(values) == 1 else values, ensure_ascii=False)
