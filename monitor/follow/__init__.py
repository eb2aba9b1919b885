"""How one path becomes one endless source of bytes, though its file is renamed, cut, replaced or out of reach.

1. `mounts` reads the mount table. `discovery.plan` gives each mount its part of the patterns (`patterns`), and each
   mount has a reader (`readers.MountReader`) in a thread of its own (`follower.ReaderThread`): one that hangs
   blocks that thread alone. `read_once` runs the same readers in the caller's thread.
2. *Discovery*: every 10 s, or a second after an unknown path was seen to change, a reader walks its directories
   (`discovery.Walk`) and makes a `source.Source` of each path that may be a log.
3. *Open*: a source claims its file (`context.Registry`), so that a file with two names is read once. It resumes at the
   offset of the state file only if the file's first bytes and those before the offset are what was read
   (`content.verify`); otherwise it begins at 0. The loop makes such proofs with a `marker.Marker` from the messages it
   has handled. A file that is held by nobody closes itself (`os_layer`).
4. *Read* (`tail`): a file is looked at every 0.5 s while it grows, every 10 s once it is silent. A look is one `stat`;
   if size or times changed, one `pread` both compares the bytes before the offset and reads on.
   On local mounts watchdog's observer ends the reader's wait early when something changes in the directories where a
   file changed in the last hour (`waker`): a line is read 40 ms after it was written.
5. *Rotate*: the path names another file. The old one is read to its end, for a second longer, then the new one begins.
   *Truncate*: the bytes before the offset changed on a fresh open; on a network mount two opens 3 s apart must agree.
   The file is read from its beginning. A copy beside it of what was cut is not read, nor what it holds besides.
   *Gone*: the name is absent from a directory that can be seen, and the old file was read to its end.
   Any other error means that the file could not be observed: nothing is given up, it is tried again with a backoff.
6. What was found crosses to the loop as `messages` through the bounded `inbox`; when that is full the reader waits.

Rules: polling decides, an event only makes it look earlier. What could not be observed is not gone. Nothing is
delivered twice by one path. What is lost: text that was cut or overwritten before it was read, and a file that came and
was rotated away between two looks, under a name that no pattern has.
"""
