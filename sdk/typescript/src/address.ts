// The address of the server, as the options and the environment state it.
import { existsSync, lstatSync, statSync } from "node:fs";
import { dirname, join, relative } from "node:path";

const DEFAULT_URL = "http://127.0.0.1:7070";

export interface Address {
  socket?: string | undefined;
  url: string;
}

/** Looked up for each connection: a server may be started later. */
export function addressOf({ socket, url }: { socket?: string; url?: string }): Address {
  const inEnvironment = { socket: process.env["AETHERIS_SOCKET"], url: process.env["AETHERIS_URL"] };
  if (socket !== undefined || url !== undefined) return { socket, url: url ?? DEFAULT_URL };
  if (inEnvironment.socket) return { socket: inEnvironment.socket, url: DEFAULT_URL };
  if (inEnvironment.url) return { url: inEnvironment.url };
  return { socket: findSocket(process.cwd()), url: DEFAULT_URL };
}

/**
 * The socket of a server whose store is in this folder or in a parent; undefined: there is none. The rules are those of
 * the commands ("Which store" in docs/cli.md): a folder of another user is not used, and the search ends below the home
 * folder, below a folder that all users share, and where the file system changes.
 */
export function findSocket(folder: string): string | undefined {
  const begin = statSync(folder);
  for (let at = folder; ; at = dirname(at)) {
    const here = statSync(at, { throwIfNoEntry: false });
    const isShared = here !== undefined && (here.mode & 0o1002) === 0o1002;
    if (at !== folder && (here?.dev !== begin.dev || isShared || at === process.env["HOME"])) return undefined;
    const store = join(at, ".aetheris");
    const entry = lstatSync(store, { throwIfNoEntry: false });
    if (entry !== undefined) {
      const socket = join(store, "aetheris.sock");
      const owners = [entry.uid, statSync(store, { throwIfNoEntry: false })?.uid]; // of a link, and of its folder
      if (owners.some((uid) => uid !== process.getuid?.()) || !existsSync(socket)) return undefined;
      const short = relative(folder, socket); // the path of a socket has at most 107 bytes
      return short.length < socket.length ? short : socket;
    }
    if (at === dirname(at)) return undefined;
  }
}
