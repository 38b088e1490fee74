"""Read-only Hubs that follow another one, and what that other one answers them.

    state       whether a root is a mirror, of what, how old; what is refused because it is one
    feed        what a Hub answers its mirrors: its repositories, refs with the log's head, git objects
    documents   the answers as types, checked before anything of them is used
    origin      asks the origin: retries, waits that it asks for, limits
    objects     brings the git objects and large files of a repository, each under its own name
    pull        brings one repository up to date: log, objects, releases checked, then refs in one step
    follow      rounds over all repositories, and what they leave to tell

What is brought is named by its content (git object ids, SHA-256); what it means is the release log's word, which must
go on from the entries that are held.
"""
