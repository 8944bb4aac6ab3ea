"""Entries of the remote cache as bytes that prove who wrote them: they hold native code.

In:  the key that the job's processes share, the entry's name, its contents.
Out: `seal(key, name, contents)`, what is kept on the server; `unseal(key, name, sealed)`, the contents, or
     `UnsignedEntry` for whatever this key has not sealed under this name.

The bytes: magic with the format's number, HMAC-SHA256 (RFC 2104, FIPS 180-4) of the magic, the name and the rest, the
contents compressed by zlib. Nothing is taken apart before the signature has been compared.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib

MAGIC = b"DYNAJITR\x01"
MIN_KEY_BYTES = 16
# more than the largest library of kernels, so that what is unpacked never fills the memory
MAX_CONTENTS = 256 << 20
_SIGNATURE = hashlib.sha256().digest_size
_LEVEL = 6


class UnsignedEntry(Exception):
    """The bytes are not what this key has sealed under that name; the text says in what they differ."""


def seal(key: bytes, name: str, contents: bytes) -> bytes:
    """The contents, compressed, with the signature before them."""
    packed = zlib.compress(contents, _LEVEL)
    return MAGIC + _signature(key, name, packed) + packed


def unseal(key: bytes, name: str, sealed: bytes) -> bytes:
    """The contents of what `seal` returned for this key and name. Raises UnsignedEntry."""
    start = len(MAGIC) + _SIGNATURE
    if len(sealed) < start or not sealed.startswith(MAGIC):
        raise UnsignedEntry(f"it does not begin as entries do ({len(sealed)} bytes)")
    packed = sealed[start:]
    if not hmac.compare_digest(sealed[len(MAGIC) : start], _signature(key, name, packed)):
        raise UnsignedEntry("its signature is not this key's: another DYNAJIT_REMOTE_KEY, or changed bytes")
    unpacking = zlib.decompressobj()
    try:
        contents = unpacking.decompress(packed, MAX_CONTENTS)
    except zlib.error as error:
        raise UnsignedEntry(f"what was signed is no compressed entry ({error})") from None
    if not unpacking.eof or unpacking.unused_data:
        raise UnsignedEntry(f"what was signed is no whole entry of at most {MAX_CONTENTS >> 20} MB")
    return contents


def _signature(key: bytes, name: str, packed: bytes) -> bytes:
    named = name.encode()
    return hmac.digest(key, MAGIC + len(named).to_bytes(4, "little") + named + packed, "sha256")
