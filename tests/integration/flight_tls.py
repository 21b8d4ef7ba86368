"""A key and its certificate for 127.0.0.1, good for tests and for nothing else: everybody can read them here."""

from __future__ import annotations

from pathlib import Path

_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgAv/drcRtDLaDne99
2D+Wj2dcKXtI9ndGOEZr3tAA1TChRANCAAQcD4SqhS2GTAKlyQKsOzyNLp7hBSku
1FL6+NzeFqRC6E+joHXAy6lxsSgC3j4bPs54lOG0TQUQyIA9fsUp0tci
-----END PRIVATE KEY-----
"""
_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBoDCCAUWgAwIBAgIUSPh/lN+j/GUzL5gkQ6UYcMrmDo8wCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLcXVpdmVyIHRlc3QwIBcNMjYxMTIxMjMyOTE3WhgPMjEyNjEw
MjgyMzI5MTdaMBYxFDASBgNVBAMMC3F1aXZlciB0ZXN0MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEHA+EqoUthkwCpckCrDs8jS6e4QUpLtRS+vjc3hakQuhPo6B1
wMupcbEoAt4+Gz7OeJThtE0FEMiAPX7FKdLXIqNvMG0wHQYDVR0OBBYEFMTDbtgS
c2GU4vrwEtQ/6OHu0Oc1MB8GA1UdIwQYMBaAFMTDbtgSc2GU4vrwEtQ/6OHu0Oc1
MA8GA1UdEwEB/wQFMAMBAf8wGgYDVR0RBBMwEYcEfwAAAYIJbG9jYWxob3N0MAoG
CCqGSM49BAMCA0kAMEYCIQDsh3W7N3LRt/Eie64DeP1Y2mDvOCFrThhf+oJRYYnX
QgIhAIyxsrQIMuM3IXuW5yfqgk6EuZXxm/OHqoE/UokMiM1M
-----END CERTIFICATE-----
"""


def written_to(directory: Path) -> tuple[Path, Path]:
    """The files of certificate and key. The certificate is its own root."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    certificate.write_text(_CERTIFICATE)
    key.write_text(_KEY)
    return certificate, key
