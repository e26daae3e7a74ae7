"""Child processes: how they are started, asked and ended.

A *fork server* imports what is heavy once and forks a child for each question
(``fork_server.py``, ``child.py``); ``client.py`` is the side of the process that asks. What a child
does is a job module, which has ``warm(*hint)`` (imports what runs of this kind need, in the server)
and ``answer(request, speaker)``, called once in a child.

Asker and child speak JSON lines over a socket. The first is ``{"environment", "folder", "path",
"request"}``. It is answered by ``{"event": {...}}`` any number of times (with ``"waits": true`` the
child goes on after ``{"go": true}``) and one ``{"answer": {...}}`` or ``{"error": sentence,
"exit_code": code}``. When the child is gone, the server adds ``{"ended": sentence}``. A child may
ask the server as well: work that must begin before CUDA runs in another fork.

No process outlives memcalc: the kernel ends the server with it, the server ends its children and
all that these have started. Nothing is written to a folder that would have to be cleaned up.
"""
