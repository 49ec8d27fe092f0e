"""Certificates for tests: an authority, and one pair that it has signed, for all roles."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = ("ca.pem", "cert.pem", "key.pem")


def write(folder: Path) -> dict[str, Path]:
    """Write the files of NAMES and return their paths."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _signed("authority", ca_key, "authority", ca_key, is_authority=True)
    certificate = _signed("grading", key, "authority", ca_key, is_authority=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    contents = (authority.public_bytes(pem), certificate.public_bytes(pem), private)
    paths = {name: folder / name for name in NAMES}
    for path, content in zip(paths.values(), contents, strict=True):
        path.write_bytes(content)
    return paths


def client(paths: dict[str, Path]) -> dict[str, str]:
    """The variables with which Dask finds them, for whoever sends work to a cluster."""
    names = ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")
    return {
        f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(path)
        for name, path in zip(names, paths.values(), strict=True)
    }


def _signed(name: str, key, by: str, by_key, *, is_authority: bool) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(by))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(by_key, hashes.SHA256())
    )
