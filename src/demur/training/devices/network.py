"""The network between the processes of a run: this machine, or the owner's word.

The entry's key and exact sums travel between the processes, and JAX neither encrypts
nor authenticates what it sends (gRPC without TLS, gloo or NCCL over TCP): whoever reads
that network can remove the noise, and whoever can reach its ports can take part in a
sum. So processes that are joined over anything but the loopback are refused, unless the
owner says that the network is their own: one that no one else can read or reach (a
private VLAN, WireGuard or IPsec between the hosts, an encrypted overlay of a cluster).
"""

from __future__ import annotations

import ipaddress
import socket

from demur.training.errors import StartRefused

_owners_word = False


def trust() -> None:
    """Take the owner's word that the network between the processes is their own."""
    global _owners_word
    _owners_word = True


def check_trusted(processes: int) -> None:
    """Refuse a run of several processes that nobody has vouched for."""
    if processes > 1 and not _owners_word:
        raise StartRefused(
            f"the {processes} processes of this run were joined without demur, and the"
            " entry's key and exact sums would travel between them unencrypted. Join"
            " them by demur.training.distributed.start, or call"
            " distributed.own_network() in each if no one else can read or reach that"
            " network. Nothing was spent."
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and reached without a network."""
    return all(
        ipaddress.ip_address(address.partition("%")[0]).is_loopback
        for address in addresses_of(host)
    )


def addresses_of(host: str) -> list[str]:
    """The addresses of a host; one that has none is refused."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StartRefused(
            f"the host {host!r} has no address ({error.strerror}): give the name or the"
            " address of the host that process 0 runs on. Nothing was spent."
        ) from None
    return [str(entry[4][0]) for entry in found]
