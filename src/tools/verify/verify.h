// The built-in verifiers: HTTP (ETag, Last-Modified, a JSON field), files, git refs and issues of a
// GitHub-compatible server, rows of SQLite and PostgreSQL databases.
//
//   {kind: http_etag | http_last_modified, url, headers?, timeout?, allow?}
//   {kind: http_json, url, field: one ${ } of .result, headers?, timeout?, allow?}
//   {kind: file, path, by: sha256 | size | mtime, below?: [folder…]}
//   {kind: git_ref, api?, repo, ref, headers?, timeout?}                        the commit
//   {kind: github, api?, repo, issue | pull | release, by: updated_at | state, headers?, timeout?}
//   {kind: sql, store: a path, postgres://… or secret:NAME, query, params?}   first column of row 1
//
// http_etag compares the change's etag, all others its version. Every `${ }` except that of `field`
// reads `.change`.
// A url whose host comes from the change (`${ .change.ref }`) has no headers, so that recorded data
// cannot redirect a secret, and reaches only public addresses or a host of `allow`.
// A path from the change must be below the folder of the agents file or a folder of `below`, and
// never reaches a denied path.
// Threads: as for Verifier. Files and databases are read on a separate thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "json/value.h"
#include "net/http_client.h"
#include "tools/secrets.h"
#include "tools/verifier.h"

namespace ae::tools {

// A thread for blocking reads: one at a time, in order.
class BlockingReader {
 public:
  explicit BlockingReader(async::Loop& loop);
  // Drops reads that have not started; their `done` is not called.
  ~BlockingReader();
  BlockingReader(const BlockingReader&) = delete;
  BlockingReader& operator=(const BlockingReader&) = delete;
  void read(std::move_only_function<CheckResult()> task, async::Done<CheckResult> done);

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

// Borrowed; they outlive the verifier.
struct VerifierDependencies {
  async::Loop& loop;
  net::HttpClient& client;
  SecretSource& secrets;
  BlockingReader& reader;
  std::string folder;  // where relative paths start
  // Paths of Aetheris itself, resolved, or prefixes of them: a path from a change must not lead
  // there.
  std::vector<std::string> denied_paths = {};
};

// Fails with plan_invalid; the message begins with the invalid key.
Result<std::unique_ptr<Verifier>> make_verifier(const Value& definition, VerifierDependencies deps);

}  // namespace ae::tools
