"""Encryption between hosts: one key and one certificate, made for one run.

Both ends hold exactly that certificate, so neither an authority nor a name is checked.
The key stays with the server; workers and controller get the certificate. The
handshake inside TLS decides who may connect.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import socket
import ssl
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from shoal.errors import ConfigError
from shoal.host.temporary import temporary_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

NAME = "shoal"
# An exact certificate needs no clock, and clocks of two hosts need not agree.
_FIRST_DAY = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_LAST_DAY = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@final
@dataclass(frozen=True, kw_only=True)
class Identity:
    """A server's certificate and the key that proves it.

    Args:
        certificate: DER, for all peers.
        key: PEM, PKCS #8, encrypted with `password`; for servers only.
        password: Password of the key, so that a temporary file of it is useless.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    password: bytes = field(repr=False)


def make_identity() -> Identity:
    """Makes a key and a certificate that only states this key.

    Raises:
        ConfigError: The package `cryptography` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"no certificate can be made for this run: {error}. "
            "The package cryptography was expected, as the run's server listens where "
            "other hosts reach it. Install it: pip install 'shoal[cluster]'"
        ) from None
    key: ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_LAST_DAY)
        .sign(key, hashes.SHA256())
    )
    password = secrets.token_hex(32).encode()
    return Identity(
        certificate=certificate.public_bytes(serialization.Encoding.DER),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        ),
        password=password,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Example:
        >>> [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "10.0.0.7")]
        [True, True, True, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def identity_for(host: str) -> Identity | None:
    """Returns the identity of a server at an address; None on loopback."""
    return None if is_loopback(host) else make_identity()


@final
class _Socket(ssl.SSLSocket):
    """Closes itself if the other end has closed before TLS began.

    Python reads the first byte while it makes such a socket, and leaves the socket open
    if that fails, with no other reference to it. Frames are read by `recv_into`.
    """

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receives, or closes the socket."""
        try:
            return super().recv(buflen, flags)
        except ConnectionError:
            self.close()
            raise


def _context(protocol: int) -> ssl.SSLContext:
    """Returns a context with the settings of both ends."""
    context = ssl.SSLContext(protocol)
    context.sslsocket_class = _Socket
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_context(identity: Identity) -> ssl.SSLContext:
    """Returns the server's context. Callers prove the secret, not a certificate."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    # Tickets would be records that make a socket readable without data.
    context.num_tickets = 0
    certificate = ssl.DER_cert_to_PEM_cert(identity.certificate).encode()
    with _file_of(identity.key + certificate) as file:
        context.load_cert_chain(file, password=identity.password)
    return context


@contextmanager
def _file_of(content: bytes) -> Generator[Path]:
    """Writes a file for OpenSSL, which reads keys from files only; removed at once.

    It is in memory if possible: a server may be started while the temporary
    directory is full.
    """
    numbers = Path("/proc/self/fd")
    if hasattr(os, "memfd_create") and numbers.is_dir():
        with open(os.memfd_create("shoal-tls"), "wb", buffering=0) as file:
            file.write(content)
            yield numbers / str(file.fileno())
        return
    with tempfile.TemporaryDirectory(
        prefix="shoal-tls-", dir=temporary_folder()
    ) as folder:
        path = Path(folder, "identity.pem")
        path.touch(0o600)
        path.write_bytes(content)
        yield path


def client_context(certificate: bytes) -> ssl.SSLContext:
    """Returns a caller's context: accepts this certificate and no other."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    return context


def wrap_caller(connection: socket.socket, certificate: bytes) -> ssl.SSLSocket:
    """Returns a caller's socket with TLS, before the handshake.

    Raises:
        OSError: The server has closed the connection.
    """
    context = client_context(certificate)
    return context.wrap_socket(connection, do_handshake_on_connect=False)


def wrap_callee(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Returns a server's socket with TLS, before the handshake.

    Raises:
        OSError: The caller has closed the connection.
    """
    return context.wrap_socket(
        connection, server_side=True, do_handshake_on_connect=False
    )


def is_pinned(connection: ssl.SSLSocket, certificate: bytes) -> bool:
    """Whether the other end has shown exactly this certificate."""
    shown = connection.getpeercert(binary_form=True)
    return shown is not None and secrets.compare_digest(shown, certificate)
