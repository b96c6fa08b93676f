// The verifiers that ship: HTTP (ETag, Last-Modified, a JSON field), files, git refs and issues of a GitHub-compatible
// server, rows of SQLite and PostgreSQL databases.
//
//   {kind: http_etag | http_last_modified, url, headers?, timeout?, allow?}
//   {kind: http_json, url, field: one ${ } of .result, headers?, timeout?, allow?}
//   {kind: file, path, by: sha256 | size | mtime, below?: [folder…]}
//   {kind: git_ref, api?, repo, ref, headers?, timeout?}                           its commit
//   {kind: github, api?, repo, issue | pull | release, by: updated_at | state, headers?, timeout?}
//   {kind: sql, store: a path, postgres://… or secret:NAME, query, params?}       the first column of the first row
//
// http_etag compares the change's etag, all others its version. Every `${ }` but that of `field` reads `.change`.
// A url whose host the change names (`${ .change.ref }`) carries no headers: a secret must not go where an answer says.
// Such a url leads to public addresses only, or to a host of `allow`. A path that the change names leads to files below the
// folder of the agents file, or below one of `below`, and never to what is closed.
// Threads: as Verifier says. Files and databases are read on a thread of their own.
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

// A thread that reads what may block: one thing at a time, in order.
class BlockingReader {
 public:
  explicit BlockingReader(async::Loop& loop);
  // What has not begun is dropped, unanswered.
  ~BlockingReader();
  BlockingReader(const BlockingReader&) = delete;
  BlockingReader& operator=(const BlockingReader&) = delete;
  void read(std::move_only_function<CheckResult()> what, async::Done<CheckResult> done);

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
  // Real paths of ours, or how they begin: a path that a change names does not lead there.
  std::vector<std::string> denied_paths = {};
};

// Fails with plan_invalid: the message begins with the key at fault.
Result<std::unique_ptr<Verifier>> make_verifier(const Value& definition, VerifierDependencies deps);

}  // namespace ae::tools
