"""File following: one path is one endless source of bytes, though its file is rotated, truncated or out of reach.

1. `mounts` reads the mount table. `discovery.plan` divides the patterns (`patterns`) among the mounts. Each mount has a
   `readers.MountReader` in its own thread (`follower.ReaderThread`), so a hung mount blocks only that thread.
   `finite.read_once` reads files to their ends in the caller's thread.
2. *Discover*: every 10 s, or a second after an unknown path changed, a reader walks its directories (`discovery.Walk`)
   and follows each path that may be a log (`followed_file.FollowedFile`).
3. *Open*: a path claims its file (`context.Registry`), so a file with two names is read once. It resumes at the saved
   offset only if the file's first bytes and those before the offset are the ones that were read (`content.verify`),
   else at 0. The proof (`content.Content`) comes to the loop with the bytes.
4. *Read*: a file is looked at every 0.5 s while it grows and every 10 s when it is silent. A look is one `stat`; if
   size or times changed, one `pread` compares the bytes before the offset and reads on. On local mounts inotify ends
   the wait early for directories with a change in the last hour (`waker`): a line is read 40 ms after it was written.
5. *Rotation*: the path names another file. The old one is read to its end, and for a second more, then the new one.
   *Truncation*: the bytes before the offset changed on a fresh open; on a network mount two opens 3 s apart must agree.
   The file is read from its beginning.
   *Gone*: the name is absent from a directory that can be read, and the old file was read to its end.
   After any other error the file counts as not observable: its state is kept, and it is tried again with a backoff.
6. Messages (`messages`) reach the loop through the bounded `inbox`; when that is full the reader waits.

Rules: polling decides, an event only hastens a look. A file that cannot be observed is not gone. No path delivers a
byte twice. Losses: text that is cut or overwritten before it is read, and a file that appears and is rotated away
between two looks to a name that no pattern matches.
"""
