"""Certificates of an authority of the tests' own, as PEM files that OpenSSL and Kafka read."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


class Authority:
    """Signs certificates, and writes them to files."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        """Writes the authority's own certificate to NAME.pem."""
        self._folder = folder
        self._ca = trustme.CA()
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._ca.cert_pem.bytes())

    def issue(self, name: str, *hosts: str, ends: datetime | None = None, file: str = "") -> Certificate:
        """A certificate whose common name is `name`, in FILE.pem and FILE.key (default: the name).

        `hosts`: the host names and addresses that it is for. `ends`: default in about two thousand years.
        """
        issued = self._ca.issue_cert(*hosts or (name,), common_name=name, not_after=ends)
        made = Certificate(self._folder / f"{file or name}.pem", self._folder / f"{file or name}.key")
        made.chain.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        # PKCS 8, the only form that Kafka reads.
        made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return made


class Certificate:
    """The files of a certificate and of its private key."""

    def __init__(self, chain: Path, key: Path) -> None:
        self.chain = chain
        self.key = key

    def joined(self) -> Path:
        """One file with the key and the certificate, as Kafka's key stores of type PEM have it."""
        file = self.chain.with_suffix(".joined.pem")
        file.write_bytes(self.key.read_bytes() + self.chain.read_bytes())
        return file
