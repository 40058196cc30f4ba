"""Certificate and key of the endpoint, tried as the server will use them."""

import ssl
import stat

from controller.api.settings.endpoint_options import EndpointOptions
from controller.main.checks.endpoint_files import read, wrong

# Chains and bundles of authorities have up to 300 kB.
MAX_PEM_BYTES = 8 << 20


def check_tls(options: EndpointOptions) -> None:
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None:
        for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_ciphers"):
            if getattr(options, name) is not None:
                raise wrong(name, "needs endpoint.ssl_certfile", "llumctl up --ssl-certfile FILE")
        for name in ("ssl_cert_reqs", "enable_ssl_refresh"):
            if getattr(options, name):
                raise wrong(name, "needs endpoint.ssl_certfile", "llumctl up --ssl-certfile FILE")
        return
    read("ssl_certfile", certificate, MAX_PEM_BYTES)
    private, name = (key, "ssl_keyfile") if key is not None else (certificate, "ssl_certfile")
    mode = stat.S_IMODE(read(name, private, MAX_PEM_BYTES)[1].st_mode)
    if mode & 0o077:
        raise wrong(
            name,
            f"{private} holds a private key and is open to other users (mode {mode:04o})",
            f"chmod 600 {private}",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ValueError as error:
        raise wrong(name, f"{private}: {error}", f"openssl pkey -in {private}") from error
    except (ssl.SSLError, OSError) as error:
        mismatch = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        why = "the key is not that of the certificate" if mismatch else _said(error)
        raise wrong(
            name, f"{private}: {why}", f"openssl x509 -in {certificate} -noout -text"
        ) from error
    _check_clients(context, options)


def _check_clients(context: ssl.SSLContext, options: EndpointOptions) -> None:
    if options.ssl_ca_certs is not None:
        read("ssl_ca_certs", options.ssl_ca_certs, MAX_PEM_BYTES)
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except ssl.SSLError as error:
            raise wrong("ssl_ca_certs", f"{options.ssl_ca_certs}: {_said(error)}") from error
    elif options.ssl_cert_reqs:
        raise wrong("ssl_cert_reqs", "needs endpoint.ssl_ca_certs: whose certificates count?")
    if options.ssl_ciphers is not None:
        try:
            context.set_ciphers(options.ssl_ciphers)
        except ssl.SSLError as error:
            raise wrong(
                "ssl_ciphers", f"{options.ssl_ciphers[:60]!r} selects no cipher", "openssl ciphers"
            ) from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, and nobody is there to type it")


def _said(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return f"not usable as PEM ({str(reason).lower().replace('_', ' ')})"
