// CrashProxy: a connection of a worker that ends at one of its frames, as it does when the process of the worker dies.
//
// It counts the frames of the worker with messages about routines and calls. The server is told that the worker has
// ended, as it would find out about a process that it knows; so its calls are lost at once.
import { createServer, connect, type Server as TcpServer, type Socket } from "node:net";

/** `before`: the server does not get the frame. */
export interface CrashPoint {
  frame: number;
  when: "before" | "after";
}

const UNCOUNTED = new Set(["hello", "heartbeat", "drain", "text", "progress"]);
const TEXT = 1;
const CLOSE_NORMAL = Buffer.from([0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8]); // masked with 0

export class CrashProxy {
  /** Of the worker, that were passed on or dropped. */
  frames = 0;
  /** Resolves when the crash has happened. */
  readonly crashed: Promise<void>;
  private readonly server: TcpServer;
  private readonly target: URL;
  private readonly sockets = new Set<Socket>();
  private point: CrashPoint | undefined;
  private isOver = false;
  private onCrash!: () => void;

  private constructor(target: string) {
    this.target = new URL(target);
    this.crashed = new Promise((done) => (this.onCrash = done));
    this.server = createServer((worker) => this.accept(worker));
  }

  static async open(target: string): Promise<CrashProxy> {
    const proxy = new CrashProxy(target);
    await new Promise<void>((done) => proxy.server.listen(0, "127.0.0.1", done));
    proxy.server.unref();
    return proxy;
  }

  get url(): string {
    const address = this.server.address();
    return `http://127.0.0.1:${typeof address === "object" && address !== null ? address.port : 0}`;
  }

  /** Counts from here, and crashes there; undefined: it only counts. */
  arm(point: CrashPoint | undefined): void {
    this.frames = 0;
    this.point = point;
  }

  close(): void {
    this.isOver = true;
    this.server.close();
    for (const socket of this.sockets) socket.destroy();
  }

  private accept(worker: Socket): void {
    if (this.isOver) return void worker.destroy();
    const server = connect(Number(this.target.port), this.target.hostname);
    const reader = new FrameReader();
    for (const socket of [worker, server]) {
      this.sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        this.sockets.delete(socket);
        // After a crash the server still reads that the worker has ended.
        if (!this.isOver) (socket === worker ? server : worker).destroy();
      });
    }
    server.on("data", (data: Buffer) => void worker.write(data));
    worker.on("data", (data: Buffer) => {
      for (const piece of reader.feed(data)) {
        if (this.isOver) return;
        if (!piece.isCounted || this.point?.frame !== ++this.frames) {
          server.write(piece.bytes);
          continue;
        }
        if (this.point.when === "after") server.write(piece.bytes);
        this.crash(server);
      }
    });
  }

  private crash(server: Socket): void {
    this.isOver = true;
    this.server.close();
    server.end(CLOSE_NORMAL);
    for (const socket of this.sockets) if (socket !== server) socket.destroy();
    this.onCrash();
  }
}

interface Piece {
  bytes: Buffer;
  isCounted: boolean;
}

/** Splits what a client sends: the head of its request, then frames. */
class FrameReader {
  private rest = Buffer.alloc(0);
  private hasHead = false;

  feed(data: Buffer): Piece[] {
    this.rest = Buffer.concat([this.rest, data]);
    const pieces: Piece[] = [];
    for (;;) {
      const length = this.hasHead ? frameLength(this.rest) : headLength(this.rest);
      if (length === undefined || this.rest.length < length) return pieces;
      const bytes = this.rest.subarray(0, length);
      pieces.push({ bytes, isCounted: this.hasHead && isCounted(bytes) });
      this.rest = this.rest.subarray(length);
      this.hasHead = true;
    }
  }
}

function headLength(data: Buffer): number | undefined {
  const end = data.indexOf("\r\n\r\n");
  return end < 0 ? undefined : end + 4;
}

function payloadAt(frame: Buffer): { from: number; length: number } | undefined {
  if (frame.length < 2) return undefined;
  const short = (frame[1] as number) & 0x7f;
  const mask = (frame[1] as number) & 0x80 ? 4 : 0;
  const head = short === 126 ? 4 : short === 127 ? 10 : 2;
  if (frame.length < head) return undefined;
  const length =
    short === 126 ? frame.readUInt16BE(2) : short === 127 ? Number(frame.readBigUInt64BE(2)) : short;
  return { from: head + mask, length };
}

function frameLength(data: Buffer): number | undefined {
  const at = payloadAt(data);
  return at && at.from + at.length;
}

function isCounted(frame: Buffer): boolean {
  const at = payloadAt(frame);
  if (at === undefined || ((frame[0] as number) & 0x0f) !== TEXT) return false;
  const mask = frame.subarray(at.from - 4, at.from);
  const text = Buffer.from(frame.subarray(at.from));
  for (let i = 0; i < text.length; i++) text[i] = (text[i] as number) ^ (mask[i % 4] as number);
  const { messages } = JSON.parse(text.toString("utf8")) as { messages: { type: string }[] };
  return messages.some(({ type }) => !UNCOUNTED.has(type));
}
