"""Keys of the operating system, as a payment would hand them out."""

from demur.core.entropy import Binding, NoiseKey, OsEntropy


def os_key(mechanism, digest=None):
    """A private key that was paid for `mechanism`, on the input it first draws on."""
    binding = Binding(mechanism.fingerprint, digest)
    return NoiseKey(OsEntropy().new_key(), private=True, binding=binding)


def compared(key):
    """The key after the question that every mechanism asks before it draws."""
    bound = key.binding
    return key.authorise(bound.fingerprint, bound.digest or "an input")
