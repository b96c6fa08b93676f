// Verifiers against real servers, files and databases: the verdicts match, mismatch and
// unreachable, and definitions that are rejected.
#include "tools/verify/verify.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <libpq-fe.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "base/hash.h"
#include "base/time.h"
#include "json/json.h"
#include "net/asio_loop.h"
#include "testing/postgres_server.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/verify/compare.h"

namespace ae::tools {
namespace {

using testing::raw_response;
using testing::RawHttpServer;

class TestSecrets final : public SecretSource {
 public:
  std::map<std::string, std::string, std::less<>> values = {{"TOKEN", "s3cr3t-canary"}};
  Result<Secret> get(std::string_view name) override {
    if (const auto found = values.find(name); found != values.end()) return Secret(found->second);
    return fail(Code::secret_missing, "the secret {} is missing", name);
  }
};

// A temporary folder.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/ae-verify-XXXXXX";
    AE_CHECK(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() {
    for (const std::string& file : files_) ::unlink(fmt::format("{}/{}", path_, file).c_str());
    ::rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string write(const std::string& name, std::string_view text) {
    const std::string at = fmt::format("{}/{}", path_, name);
    const int file = ::open(at.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    AE_CHECK(file >= 0 &&
             ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(file);
    files_.push_back(name);
    return at;
  }
  void adopt(const std::string& name) { files_.push_back(name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

struct VerifierFixture {
  net::AsioLoop loop;
  net::HttpClient client{loop};
  TestSecrets secrets;
  BlockingReader reader{loop};
  std::string folder = ".";
  std::vector<std::string> denied_paths = {};

  Result<std::unique_ptr<Verifier>> make(const Value& definition) {
    return make_verifier(definition, {loop, client, secrets, reader, folder, denied_paths});
  }
  CheckResult check(const Value& definition, const Value& change) {
    auto verifier = make(definition);
    if (!verifier) {
      ADD_FAILURE() << verifier.error().message;
      return {};
    }
    CheckResult result;
    bool returned = false;
    (*verifier)->check(change, [&](CheckResult check_result) {
      EXPECT_TRUE(returned);
      result = std::move(check_result);
      loop.stop();
    });
    returned = true;
    loop.run();
    return result;
  }
};

Value json(std::string_view text) { return *parse_json(text); }

Value change(std::string_view op, Value version, Value etag, Value ref = {}) {
  return Value::object({{"etag", std::move(etag)},
                        {"id", "7"},
                        {"op", op},
                        {"ref", std::move(ref)},
                        {"type", "thing"},
                        {"version", std::move(version)}});
}

Value etag_of(const RawHttpServer& server) {
  return Value::object({{"kind", "http_etag"}, {"url", server.url("/things/${ .change.id }")}});
}

AE_TEST("verify/http_etag: compares the recorded tag, weak or strong") {
  RawHttpServer server(
      RawHttpServer::always(raw_response(200, "{}", "application/json", "ETag: W/\"v1\"\r\n")));
  VerifierFixture fixture;
  EXPECT_EQ(fixture.check(etag_of(server), change("create", {}, "\"v1\"")).verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(etag_of(server), change("create", {}, "v1")).verdict,
            CheckVerdict::match);
  const CheckResult result = fixture.check(etag_of(server), change("create", {}, "\"v0\""));
  EXPECT_EQ(result.verdict, CheckVerdict::mismatch);
  EXPECT_EQ(result.expected, "\"v0\"");
  EXPECT_EQ(result.observed, "W/\"v1\"");
  EXPECT_EQ(server.requests()[0].target(), "/things/7");
  EXPECT_TRUE(server.requests()[0].head.starts_with("GET "));
}

AE_TEST("verify/http_etag: the url may come from the tool's result") {
  RawHttpServer server(
      RawHttpServer::always(raw_response(200, "{}", "application/json", "ETag: \"v1\"\r\n")));
  VerifierFixture fixture;
  const Value definition =
      json(R"({"kind": "http_etag", "url": "${ .change.ref }", "allow": ["127.0.0.1"]})");
  EXPECT_EQ(fixture.check(definition, change("create", {}, "v1", server.url("/a"))).verdict,
            CheckVerdict::match);
  for (const char* ref : {"file:///etc/passwd", "http://user@h/", "http:///x", "nothing", ""}) {
    EXPECT_EQ(fixture.check(definition, change("create", {}, "v1", ref)).verdict,
              CheckVerdict::unreachable)
        << ref;
  }
  EXPECT_EQ(fixture.check(definition, change("create", {}, "v1", Value())).verdict,
            CheckVerdict::unreachable);
  EXPECT_EQ(server.arrivals(), 1);
}

AE_TEST("verify/a change without a recorded version is unconfirmed") {
  RawHttpServer server(
      RawHttpServer::always(raw_response(200, "{}", "application/json", "ETag: \"v1\"\r\n")));
  VerifierFixture fixture;
  const CheckResult result = fixture.check(etag_of(server), change("create", "3", Value()));
  EXPECT_EQ(result.verdict, CheckVerdict::unconfirmed);
  EXPECT_EQ(result.reason, "no etag was recorded");
}

AE_TEST("verify/a missing resource is a mismatch, or a match if the job deleted it") {
  VerifierFixture fixture;
  for (const int status : {404, 410}) {
    RawHttpServer server(RawHttpServer::always(raw_response(status)));
    const CheckResult gone = fixture.check(etag_of(server), change("create", {}, "v1"));
    EXPECT_EQ(gone.verdict, CheckVerdict::mismatch);
    EXPECT_EQ(gone.observed, "absent");
    EXPECT_EQ(fixture.check(etag_of(server), change("delete", {}, Value())).verdict,
              CheckVerdict::match);
  }
  RawHttpServer existing(
      RawHttpServer::always(raw_response(200, "{}", "application/json", "ETag: \"v1\"\r\n")));
  EXPECT_EQ(fixture.check(etag_of(existing), change("delete", {}, Value())).verdict,
            CheckVerdict::mismatch);
}

AE_TEST("verify/an error, an invalid response or a missing tag is unreachable with the reason") {
  VerifierFixture fixture;
  for (const int status : {301, 401, 403, 429, 500, 503}) {
    RawHttpServer server(RawHttpServer::always(raw_response(status)));
    const CheckResult result = fixture.check(etag_of(server), change("create", {}, "v1"));
    EXPECT_EQ(result.verdict, CheckVerdict::unreachable);
    EXPECT_NE(result.reason.find(std::to_string(status)), std::string::npos) << result.reason;
  }
  RawHttpServer untagged(RawHttpServer::always(raw_response(200)));
  EXPECT_EQ(fixture.check(etag_of(untagged), change("create", {}, "v1")).verdict,
            CheckVerdict::unreachable);
  RawHttpServer cut([](RawHttpServer::Conversation& c) {
    while (c.read_request()) {
      c.send("HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 10\r\n\r\nab");
      return;
    }
  });
  EXPECT_EQ(fixture.check(etag_of(cut), change("create", {}, "v1")).verdict,
            CheckVerdict::unreachable);
  std::string closed;
  {
    RawHttpServer server(RawHttpServer::always(""));
    closed = server.url("/x");
  }
  const Value definition = Value::object({{"kind", "http_etag"}, {"url", closed}});
  EXPECT_EQ(fixture.check(definition, change("create", {}, "v1")).verdict,
            CheckVerdict::unreachable);
  RawHttpServer silent([](RawHttpServer::Conversation& c) {
    while (c.read_request()) c.hang();
  });
  EXPECT_EQ(
      fixture.check(etag_of(silent).with("timeout", "100ms"), change("create", {}, "v1")).verdict,
      CheckVerdict::unreachable);
}

AE_TEST("verify/http_last_modified: dates are compared as times") {
  RawHttpServer server(RawHttpServer::always(raw_response(
      200, "{}", "application/json", "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n")));
  VerifierFixture fixture;
  const Value definition =
      Value::object({{"kind", "http_last_modified"}, {"url", server.url("/x")}});
  for (const char* same : {"Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z", "784111777"}) {
    EXPECT_EQ(fixture.check(definition, change("update", same, {})).verdict, CheckVerdict::match)
        << same;
  }
  EXPECT_EQ(fixture.check(definition, change("update", "1994-11-06T08:49:38Z", {})).verdict,
            CheckVerdict::mismatch);
}

AE_TEST("verify/http_json: compares one field of the response") {
  RawHttpServer server(
      RawHttpServer::always(raw_response(200, R"({"a": {"version": 12, "none": null}})")));
  VerifierFixture fixture;
  const auto check_with = [&](std::string_view field, const char* version) {
    return fixture.check(Value::object({{"kind", "http_json"},
                                        {"url", server.url("/x")},
                                        {"field", fmt::format("${{ {} }}", field)}}),
                         change("update", version, {}));
  };
  EXPECT_EQ(check_with(".result.a.version", "12").verdict, CheckVerdict::match);
  EXPECT_EQ(check_with(".result.a.version", "11").observed, "12");
  EXPECT_EQ(check_with(".result.a.none", "11").verdict, CheckVerdict::unreachable);
  EXPECT_EQ(check_with(".result.b", "11").verdict, CheckVerdict::unreachable);
}

AE_TEST("verify/a secret is sent only to a literal host, and is redacted from the result") {
  RawHttpServer server(RawHttpServer::always(
      raw_response(200, "{}", "application/json", "ETag: \"s3cr3t-canary\"\r\n")));
  VerifierFixture fixture;
  const Value headers = json(R"({"Authorization": "Bearer secret:TOKEN"})");
  const CheckResult result =
      fixture.check(etag_of(server).with("headers", headers), change("create", {}, "v1"));
  EXPECT_EQ(server.requests()[0].header("Authorization"), "Bearer s3cr3t-canary");
  EXPECT_EQ(result.observed.find("s3cr3t"), std::string::npos) << result.observed;
  RawHttpServer longer(RawHttpServer::always(raw_response(
      200, "{}", "application/json",
      fmt::format("ETag: \"{}s3cr3t-canary\"\r\n", std::string(kCheckTextMax - 8, 'x')))));
  const std::string observed =
      fixture.check(etag_of(longer).with("headers", headers), change("create", {}, "v1")).observed;
  EXPECT_TRUE(observed.ends_with("x[secret")) << observed << ": redacted before truncation";
  const Value anywhere =
      Value::object({{"kind", "http_etag"}, {"url", "${ .change.ref }"}, {"headers", headers}});
  EXPECT_FALSE(fixture.make(anywhere));
  const Value missing =
      etag_of(server).with("headers", json(R"({"Authorization": "secret:NONE"})"));
  EXPECT_EQ(fixture.check(missing, change("create", {}, "v1")).verdict, CheckVerdict::unreachable);
}

AE_TEST("verify/git_ref: compares the commit of a ref by GitHub's REST API") {
  RawHttpServer server(RawHttpServer::always(
      raw_response(200, R"({"ref": "refs/heads/main", "object": {"sha": "abc123"}})")));
  VerifierFixture fixture;
  const Value definition =
      Value::object({{"kind", "git_ref"},
                     {"api", server.url("/api/v3")},
                     {"repo", "o/n"},
                     {"ref", "${ .change.ref }"},
                     {"headers", json(R"({"Authorization": "secret:TOKEN"})")}});
  EXPECT_EQ(fixture.check(definition, change("update", "abc123", {}, "refs/heads/ma in")).verdict,
            CheckVerdict::match);
  EXPECT_EQ(server.requests()[0].target(), "/api/v3/repos/o/n/git/ref/heads/ma%20in");
  EXPECT_EQ(server.requests()[0].header("Accept"), "application/vnd.github+json");
  EXPECT_EQ(fixture.check(definition, change("update", "abc124", {}, "heads/main")).verdict,
            CheckVerdict::mismatch);
  EXPECT_EQ(fixture.check(definition, change("update", "abc123", {}, "heads/../../../x")).verdict,
            CheckVerdict::unreachable);
  EXPECT_EQ(server.arrivals(), 2);
}

AE_TEST("verify/github: compares the last update or the state of an issue, pull or release") {
  RawHttpServer server([](RawHttpServer::Conversation& c) {
    while (auto request = c.read_request()) {
      const std::string target = request->target();
      std::string body = R"({"updated_at": "2026-01-02T03:04:05Z", "state": "open"})";
      if (target.ends_with("/pulls/2")) body = R"({"state": "closed", "merged": true})";
      if (target.ends_with("/releases/tags/v1.0")) {
        body = R"({"published_at": "2026-01-02T03:04:05Z", "prerelease": true})";
      }
      if (!c.send(raw_response(target.find("/repos/o/n/") == 0 ? 200 : 404, body))) return;
    }
  });
  VerifierFixture fixture;
  const Value base = Value::object({{"kind", "github"}, {"api", server.url("")}, {"repo", "o/n"}});
  const auto verdict = [&](const Value& definition, const char* version) {
    return fixture.check(definition, change("update", version, {})).verdict;
  };
  EXPECT_EQ(verdict(base.with("issue", "${ .change.id }"), "2026-01-02T03:04:05Z"),
            CheckVerdict::match);
  EXPECT_EQ(verdict(base.with("issue", "1"), "2026-01-02T03:04:06Z"), CheckVerdict::mismatch);
  EXPECT_EQ(verdict(base.with("issue", "1").with("by", "state"), "open"), CheckVerdict::match);
  EXPECT_EQ(verdict(base.with("pull", "2").with("by", "state"), "merged"), CheckVerdict::match);
  EXPECT_EQ(verdict(base.with("release", "v1.0"), "2026-01-02T03:04:05Z"), CheckVerdict::match);
  EXPECT_EQ(verdict(base.with("release", "v1.0").with("by", "state"), "published"),
            CheckVerdict::mismatch);
}

AE_TEST("verify/http_etag: a url from a result cannot reach private addresses") {
  RawHttpServer server(
      RawHttpServer::always(raw_response(200, "{}", "application/json", "ETag: \"v1\"\r\n")));
  VerifierFixture fixture;
  const std::string url = server.url("");
  const std::string port = url.substr(url.rfind(':'));
  const Value any = json(R"({"kind": "http_etag", "url": "${ .change.ref }"})");
  const Value other = any.with("allow", Value::array({"127.0.0.1:1", "localhost.example"}));
  for (const std::string host :
       {"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "localhost",
        "[::ffff:127.0.0.1]", "[::1]", "0", "0.0.0.0", "169.254.169.254", "10.0.0.1", "[fe80::1]",
        "[64:ff9b::7f00:1]"}) {
    for (const Value& definition : {any, other}) {
      const CheckResult result = fixture.check(
          definition, change("create", {}, "v1", fmt::format("http://{}{}/a", host, port)));
      EXPECT_EQ(result.verdict, CheckVerdict::unreachable) << host;
    }
  }
  for (const std::string host : {"127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]"}) {
    const CheckResult result =
        fixture.check(any, change("create", {}, "v1", fmt::format("http://{}{}/a", host, port)));
    EXPECT_TRUE(result.reason.starts_with("address_denied: ")) << host << ": " << result.reason;
  }
  EXPECT_EQ(server.arrivals(), 0);
  // A server with a literal url in the agents file is allowed; its connection is not reused for a
  // recorded url.
  EXPECT_EQ(fixture.check(etag_of(server), change("create", {}, "v1")).verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(any, change("create", {}, "v1", server.url("/a"))).verdict,
            CheckVerdict::unreachable);
  EXPECT_EQ(server.arrivals(), 1);
}

AE_TEST("verify/file: a path from a result cannot leave the allowed folders") {
  Folder folder, elsewhere;
  const std::string secret = elsewhere.write("secret", "text");
  folder.write("a.txt", "hello");
  ASSERT_EQ(::symlink(secret.c_str(), (folder.path() + "/link").c_str()), 0);
  folder.adopt("link");
  VerifierFixture fixture;
  fixture.folder = folder.path();
  const Value definition = json(R"({"kind": "file", "path": "${ .change.ref }"})");
  const std::string digest = to_hex(sha256("text"));
  for (const std::string& path :
       {secret, std::string("/etc/passwd"), std::string("../../etc/passwd"), std::string("link"),
        folder.path() + "/../etc/passwd", folder.path() + "x/a.txt"}) {
    const CheckResult result = fixture.check(definition, change("create", digest, {}, path));
    EXPECT_EQ(result.verdict, CheckVerdict::unreachable) << path;
    EXPECT_EQ(result.observed, "") << path;
  }
  const Value named = definition.with("below", Value::array({elsewhere.path()}));
  EXPECT_EQ(fixture.check(named, change("create", digest, {}, secret)).verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(named, change("create", digest, {}, "a.txt")).verdict,
            CheckVerdict::unreachable);
  // A literal path is not restricted.
  EXPECT_EQ(
      fixture.check(json(R"({"kind": "file"})").with("path", secret), change("create", digest, {}))
          .verdict,
      CheckVerdict::match);
}

AE_TEST("verify/file: a path from a result cannot reach files of the runtime") {
  Folder folder;
  const std::string store = folder.write("store.db", "text");
  folder.write("store.db-wal", "text");
  folder.write("other", "text");
  ASSERT_EQ(::symlink("store.db", (folder.path() + "/link").c_str()), 0);
  folder.adopt("link");
  ASSERT_EQ(::link(store.c_str(), (folder.path() + "/twin").c_str()), 0);
  folder.adopt("twin");
  VerifierFixture fixture;
  fixture.folder = folder.path();
  fixture.denied_paths = {store};
  const std::string digest = to_hex(sha256("text"));
  const Value definition = json(R"({"kind": "file", "path": "${ .change.ref }"})");
  for (const Value& one : {definition, definition.with("by", "size"),
                           definition.with("below", Value::array({folder.path()}))}) {
    for (const std::string path :
         {"store.db", "store.db-wal", "store.db-shm", "./x/../store.db", "link", "twin"}) {
      const CheckResult result = fixture.check(one, change("create", digest, {}, path));
      EXPECT_EQ(result.verdict, CheckVerdict::unreachable) << path;
      EXPECT_EQ(result.observed, "") << path;
    }
  }
  EXPECT_EQ(fixture.check(definition, change("create", digest, {}, "other")).verdict,
            CheckVerdict::match);
}

AE_TEST("verify/file: the digest of a file that keeps growing is aborted") {
  Folder folder;
  const std::string path = folder.write("log", "hello");
  ASSERT_EQ(::truncate(path.c_str(), 64 << 20), 0);
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (off_t size = 64 << 20; !over; ++size) EXPECT_EQ(::truncate(path.c_str(), size), 0);
  });
  VerifierFixture fixture;
  fixture.folder = folder.path();
  const CheckResult result = fixture.check(json(R"({"kind": "file", "path": "log"})"),
                                           change("create", to_hex(sha256("hello")), {}, path));
  over = true;
  writer.join();
  EXPECT_NE(result.verdict, CheckVerdict::match);
  EXPECT_NE(result.reason.find("it grew while it was read"), std::string::npos) << result.reason;
}

AE_TEST("verify/file: compares digest, size or time, a missing or unreadable file is reported") {
  Folder folder;
  const std::string path = folder.write("a.txt", "hello");
  VerifierFixture fixture;
  fixture.folder = folder.path();
  const Value by_digest = json(R"({"kind": "file", "path": "${ .change.ref }"})");
  const std::string digest = to_hex(sha256("hello"));
  EXPECT_EQ(fixture.check(by_digest, change("create", digest, {}, path)).verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(by_digest, change("create", "sha256:" + digest, {}, "a.txt")).verdict,
            CheckVerdict::match);
  folder.write("a.txt", "hellO");
  EXPECT_EQ(fixture.check(by_digest, change("create", digest, {}, path)).verdict,
            CheckVerdict::mismatch);
  const Value by_size = by_digest.with("by", "size");
  EXPECT_EQ(fixture.check(by_size, change("create", "5", {}, path)).verdict, CheckVerdict::match);
  EXPECT_EQ(fixture.check(by_size, change("create", "6", {}, path)).observed, "5");
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  const Instant at{info.st_mtim.tv_sec * 1'000'000 + info.st_mtim.tv_nsec / 1'000};
  const Value by_time = by_digest.with("by", "mtime");
  EXPECT_EQ(fixture.check(by_time, change("create", to_text(at), {}, path)).verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(by_time, change("create", std::to_string(info.st_mtim.tv_sec), {}, path))
                .verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(by_time, change("create", "1", {}, path)).verdict,
            CheckVerdict::mismatch);
  const CheckResult gone = fixture.check(by_digest, change("create", digest, {}, path + ".not"));
  EXPECT_EQ(gone.verdict, CheckVerdict::mismatch);
  EXPECT_EQ(gone.observed, "absent");
  EXPECT_EQ(fixture.check(by_digest, change("delete", {}, {}, path + ".not")).verdict,
            CheckVerdict::match);
  EXPECT_EQ(fixture.check(by_digest, change("create", digest, {}, folder.path())).verdict,
            CheckVerdict::unreachable);
  EXPECT_EQ(fixture.check(by_digest, change("create", digest, {}, Value())).verdict,
            CheckVerdict::unreachable);
}

AE_TEST("verify/sql: compares the first column of the first row, one read-only statement only") {
  Folder folder;
  folder.adopt("d.db");
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder.path() + "/d.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db,
                         "CREATE TABLE orders(id INTEGER PRIMARY KEY, version INTEGER);"
                         "INSERT INTO orders VALUES (7, 3), (8, NULL);",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  VerifierFixture fixture;
  fixture.folder = folder.path();
  const Value definition = json(
      R"({"kind": "sql", "store": "d.db", "query": "SELECT version FROM orders WHERE id = ?",
          "params": ["${ .change.id }"]})");
  EXPECT_EQ(fixture.check(definition, change("update", "3", {})).verdict, CheckVerdict::match);
  const CheckResult other = fixture.check(definition, change("update", "2", {}));
  EXPECT_EQ(other.verdict, CheckVerdict::mismatch);
  EXPECT_EQ(other.observed, "3");
  ASSERT_EQ(sqlite3_exec(db, "DELETE FROM orders WHERE id = 7", nullptr, nullptr, nullptr),
            SQLITE_OK);
  EXPECT_EQ(fixture.check(definition, change("update", "3", {})).observed, "absent");
  EXPECT_EQ(fixture.check(definition, change("delete", {}, {})).verdict, CheckVerdict::match);
  for (const char* query :
       {"DELETE FROM orders WHERE id = ?", "SELECT 3 WHERE ?; DELETE FROM orders", "SELECT",
        "SELECT version FROM orders", "SELECT version FROM nowhere WHERE id = ?"}) {
    EXPECT_EQ(fixture.check(definition.with("query", query), change("update", "3", {})).verdict,
              CheckVerdict::unreachable)
        << query;
  }
  EXPECT_EQ(fixture.check(definition.with("store", "none.db"), change("update", "3", {})).verdict,
            CheckVerdict::unreachable);
  int rows = 0;
  sqlite3_exec(
      db, "SELECT 1 FROM orders",
      [](void* n, int, char**, char**) { return ++*static_cast<int*>(n), 0; }, &rows, nullptr);
  EXPECT_EQ(rows, 1);  // a check deleted nothing
  sqlite3_close(db);
}

AE_TEST("verify/sql: reads a row of PostgreSQL in a read-only session") {
  const testing::PostgresServer server;
  const auto admin = [&](const char* statement) {
    PGconn* connection = PQconnectdb(server.url().c_str());
    PGresult* done = PQexec(connection, statement);
    EXPECT_LE(PQresultStatus(done), PGRES_TUPLES_OK) << PQerrorMessage(connection);
    const std::string first = PQntuples(done) > 0 ? PQgetvalue(done, 0, 0) : "";
    PQclear(done);
    PQfinish(connection);
    return first;
  };
  admin("CREATE TABLE orders(id bigint PRIMARY KEY, version bigint)");
  admin("INSERT INTO orders VALUES (7, 3), (8, NULL)");
  admin("CREATE SEQUENCE numbers");
  VerifierFixture fixture;
  const Value definition =
      json(R"({"kind": "sql", "query": "SELECT version FROM orders WHERE id = $1",
               "params": [7]})")
          .with("store", server.url());
  EXPECT_EQ(fixture.check(definition, change("update", "3", {})).verdict, CheckVerdict::match);
  EXPECT_EQ(fixture.check(definition, change("update", "2", {})).observed, "3");
  const Value of_8 = definition.with("params", json("[\"8\"]"));
  EXPECT_EQ(fixture.check(of_8, change("update", "null", {})).verdict, CheckVerdict::match);
  const Value of_9 = definition.with("params", json("[9]"));
  EXPECT_EQ(fixture.check(of_9, change("update", "3", {})).observed, "absent");
  EXPECT_EQ(fixture.check(of_9, change("delete", {}, {})).verdict, CheckVerdict::match);
  for (const char* query :
       {"DELETE FROM orders WHERE id = $1 RETURNING version", "DELETE FROM orders WHERE id = $1",
        "SELECT version FROM orders WHERE id = $1; DELETE FROM orders", "SELECT",
        "SELECT nextval('numbers') WHERE $1 = 7", "SELECT 1", "COMMIT",
        "SELECT version FROM nowhere WHERE id = $1"}) {
    const CheckResult result =
        fixture.check(definition.with("query", query), change("update", "3", {}));
    EXPECT_EQ(result.verdict, CheckVerdict::unreachable) << query;
  }
  EXPECT_EQ(admin("SELECT count(*) FROM orders"), "2");
  EXPECT_EQ(admin("SELECT is_called FROM numbers"), "f");
  fixture.secrets.values["SHOP"] = server.url();
  EXPECT_EQ(
      fixture.check(definition.with("store", "secret:SHOP"), change("update", "3", {})).verdict,
      CheckVerdict::match);
  for (const char* address : {"postgres://u:geheim@127.0.0.1:1/d", "postgres://u:geheim@[/d",
                              "postgres://u:geheim@127.0.0.1/d?nothing=geheim"}) {
    fixture.secrets.values["SHOP"] = address;
    const CheckResult lost =
        fixture.check(definition.with("store", "secret:SHOP"), change("update", "3", {}));
    EXPECT_EQ(lost.verdict, CheckVerdict::unreachable);
    EXPECT_EQ(lost.reason.find("geheim"), std::string::npos) << lost.reason;
  }
}

AE_TEST("verify/an invalid definition is rejected") {
  VerifierFixture fixture;
  for (const char* text :
       {R"({"kind": "carrier_pigeon"})", R"({"kind": "http_etag"})",
        R"({"kind": "http_etag", "url": "ftp://h/"})",
        R"({"kind": "http_etag", "url": "http://${ .change.id }/"})",
        R"({"kind": "http_etag", "url": "http://h/${ .args.id }"})",
        R"({"kind": "http_etag", "url": "http://h/", "colour": 1})",
        R"({"kind": "http_json", "url": "http://h/"})", R"({"kind": "file", "path": ""})",
        R"({"kind": "file", "path": "x", "by": "colour"})", R"({"kind": "sql", "store": "x"})",
        R"({"kind": "github", "repo": "o/n"})",
        R"({"kind": "github", "repo": "o/n", "issue": "1", "pull": "1"})",
        R"({"kind": "git_ref", "repo": "o/n", "ref": "x", "api": "http://${ .change.ref }"})",
        R"({"kind": "git_ref", "repo": "o/n", "ref": "x", "timeout": "0s"})"}) {
    EXPECT_FALSE(fixture.make(json(text))) << text;
  }
}

AE_TEST("verify/a check whose verifier and reader are destroyed is dropped safely") {
  Folder folder;
  const std::string path = folder.write("a.txt", "hello");
  net::AsioLoop loop;
  int answers = 0;
  {
    net::HttpClient client(loop);
    TestSecrets secrets;
    BlockingReader reader(loop);
    auto verifier = make_verifier(Value::object({{"kind", "file"}, {"path", path}}),
                                  {loop, client, secrets, reader, "."});
    ASSERT_TRUE(verifier);
    for (int i = 0; i < 50; ++i) {
      (*verifier)->check(change("create", "x", {}), [&answers](CheckResult) { answers++; });
    }
  }
  loop.post([&loop] { loop.stop(); });
  loop.run();
  EXPECT_LE(answers, 50);
}

}  // namespace
}  // namespace ae::tools
