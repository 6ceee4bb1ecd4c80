"""Every exception that this package raises. The native module raises these too."""


class ColdproofError(Exception):
    """Anything that coldproof refuses. Nothing was changed by it."""


class MemoryRangeError(ColdproofError, ValueError):
    """A range of memory that cannot be read."""


class DigestError(ColdproofError, ValueError):
    """A tensor whose bytes are not what dtype and shape say, or that has no digest."""


class ProtocolError(ColdproofError, ValueError):
    """Text that is not the engine protocol's."""


class RegistryError(ColdproofError):
    """A slot that cannot be registered or compared."""


class TransactionError(ColdproofError):
    """An event that the transaction machine refuses."""


class LedgerError(ColdproofError):
    """An application that contradicts the promise or an earlier application."""


class ReceiptError(ColdproofError):
    """Receipts that do not make one update."""


class DeviceError(ColdproofError):
    """A device that is not there, or a call that its driver refused."""
