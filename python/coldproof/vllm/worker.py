"""The worker extension: one method, so that no name can collide with the worker's own."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from . import cold_load, post_load

# Before any weights are loaded: this module is imported when the worker's class is put together.
post_load.install()
cold_load.install()


class WorkerExtension:
    """Added to the end of the worker's bases by ``worker_extension_cls``."""

    def coldproof_call(self, method: str, *args: Any) -> Any:
        """Calls a method of this rank's :class:`coldproof.vllm.rank.Rank`.

        Returns ``("ok", value)`` or ``("refused" | "unsupported" | "raised", text)``, so that an
        error of one rank does not end the executor.
        """
        from coldproof.agent import Refused, Unsupported, one_line

        from .rank import Rank

        rank = self.__dict__.get("_coldproof_rank")
        if rank is None:
            rank = Rank(self)
            self.__dict__["_coldproof_rank"] = rank
        try:
            return "ok", getattr(rank, method)(*args)
        except Unsupported as error:
            return "unsupported", str(error)
        except Refused as error:
            return "refused", str(error)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return "raised", one_line(error)
