"""Shows the last Snapshot over HTTP. No request touches a log's file system or the loop's state."""
