"""Child processes: how they are started, asked and ended.

A *parent* is a process that imports what is heavy once and forks a *child* for each who asks
(``parent.py``, ``child.py``); ``client.py`` is the side of memcalc's own process. What the children
do is a job module, which has ``NAME`` (how its runs are called in a sentence), ``warm(hint)``
(imports what all runs of this kind need, in the parent) and ``answer_for(breadcrumbs)``, called
once in each child: a function from a request and a ``Speaker`` to an answer.

Asker and child speak JSON lines over a socket. The first says where the child works:
``{"environment", "folder", "path"}``. Then come requests, ``{"job": n, ...}``; each is answered by
``{"job": n, "event": {...}}`` any number of times (with ``"waits": true`` the child goes on after
``{"go": n}``) and one ``{"job": n, "answer": {...}}`` or ``{"job": n, "error": sentence,
"exit_code": code}``. When the child is gone, its parent adds ``{"ended": sentence}``.

Nobody outlives memcalc: the kernel ends the parent with it, the parent ends its children and all
that these have started. Nothing is written to a folder that somebody would have to clean up.
"""
