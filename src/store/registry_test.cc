// Registry: folding keys and agents from the audit log, including invalid entries.
#include "store/registry.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::store {
namespace {

constexpr Instant kDay{1'700'000'000'000'000};
constexpr Duration kHour = std::chrono::hours(1);

// An audit log that is written and read as a store does it.
struct Log {
  AuditHead head;
  std::vector<AuditRow> rows;

  void add(const AuditEntry& entry) {
    rows.push_back(chain_entry(head, entry));
    head = {rows.back().seq, rows.back().hash};
  }
  void add_body(const std::string& body) {
    rows.push_back({.seq = head.seq + 1, .body = body, .hash = {}});
    head.seq++;
  }
  Registry registry(std::vector<std::string>* warnings = nullptr) const {
    Registry registry;
    for (const AuditRow& row : rows) {
      const auto warning = registry.apply(row);
      if (warning && warnings != nullptr) warnings->push_back(*warning);
    }
    return registry;
  }
};

ApiKey key(const std::string& id) {
  return {.id = id,
          .secret_hash = sha256("secret of " + id),
          .role = "viewer",
          .name = "dashboard",
          .created_by = "cli:ada",
          .revoked_by = {},
          .created_at = kDay};
}

AgentVersion agent(const std::string& name, int n) {
  return {.name = name,
          .plan_hash = to_hex(sha256(name + std::to_string(n))),
          .definition = Value::object({{"n", n}}),
          .registered_at = kDay,
          .by = "serve"};
}

AE_TEST("registry/a key is restored from its entry, which does not contain the secret") {
  Log log;
  ApiKey made = key("k1");
  made.expires_at = kDay + kHour;
  log.add(key_created(made));
  EXPECT_EQ(log.rows[0].body.find("secret of"), std::string::npos);
  const Registry registry = log.registry();
  const ApiKey* const found = registry.key("k1");
  ASSERT_TRUE(found != nullptr);
  EXPECT_EQ(found->secret_hash, made.secret_hash);
  EXPECT_EQ(found->role, "viewer");
  EXPECT_EQ(found->name, "dashboard");
  EXPECT_EQ(found->created_by, "cli:ada");
  EXPECT_EQ(found->created_at, kDay);
  EXPECT_EQ(found->expires_at, made.expires_at);
  EXPECT_TRUE(registry.key("k2") == nullptr);
}

AE_TEST("registry/a key is valid until it expires or is revoked, and not again after that") {
  Log log;
  ApiKey short_one = key("k1");
  short_one.expires_at = kDay + kHour;
  log.add(key_created(short_one));
  log.add(key_created(key("k2")));
  Registry registry = log.registry();
  EXPECT_TRUE(registry.key("k1")->is_live(kDay + kHour - Duration(1)));
  EXPECT_FALSE(registry.key("k1")->is_live(kDay + kHour));
  EXPECT_TRUE(registry.key("k2")->is_live(kDay + 1000 * kHour));
  log.add(key_revoked("k2", kDay + kHour, "cli:bob"));
  log.add(key_revoked("k2", kDay + 2 * kHour, "cli:eve"));
  log.add(key_created(key("k2")));
  registry = log.registry();
  EXPECT_FALSE(registry.key("k2")->is_live(kDay)) << "also if a clock goes back";
  EXPECT_EQ(registry.key("k2")->revoked_by, "cli:bob");
  EXPECT_EQ(registry.key("k2")->revoked_at, kDay + kHour);
}

AE_TEST("registry/a new agent version requires a definition or plan that differs from the last") {
  Log log;
  log.add(agent_registered(agent("a", 1)));
  log.add(agent_registered(agent("a", 1)));
  log.add(agent_registered(agent("b", 1)));
  log.add(agent_registered(agent("a", 2)));
  AgentVersion again = agent("a", 2);
  again.plan_hash = to_hex(sha256("another rule of a tool"));
  log.add(agent_registered(again));
  log.add(agent_registered(agent("a", 1)));
  const Registry registry = log.registry();
  ASSERT_EQ(registry.agents().at("a").size(), 4u);
  EXPECT_EQ(registry.newest("a")->version, 4u);
  EXPECT_EQ(registry.newest("b")->version, 1u);
  EXPECT_TRUE(registry.newest("c") == nullptr);
  EXPECT_EQ(registry.find_version_with_plan("a", agent("a", 2).plan_hash)->version, 2u);
  EXPECT_EQ(registry.find_version_with_plan("a", agent("a", 1).plan_hash)->version, 4u)
      << "the newest with it";
  EXPECT_TRUE(registry.find_version_with_plan("b", agent("a", 2).plan_hash) == nullptr);
}

AE_TEST("registry/repeated and unrelated entries change nothing") {
  Log log;
  log.add(key_created(key("k1")));
  log.add(
      {.at = kDay, .by = "ada", .act = "redact", .job = JobId("j"), .detail = Value::object({})});
  Registry registry = log.registry();
  EXPECT_EQ(registry.seq(), 2u);
  for (const AuditRow& row : log.rows) EXPECT_FALSE(registry.apply(row));
  EXPECT_EQ(registry.keys().size(), 1u);
  EXPECT_EQ(registry.seq(), 2u);
}

AE_TEST("registry/an invalid entry grants nothing and returns a warning") {
  const std::string hash = to_hex(sha256("x"));
  const auto entry = [](const std::string& act, const std::string& detail) {
    return R"({"act":")" + act + R"(","at":"2026-01-01T00:00:00Z","by":"x","detail":)" + detail +
           R"(,"job":"","seq":1})";
  };
  const std::vector<std::string> bad{
      "key_created",
      "\"key_created\"",
      R"({"act":"key_created"})",
      entry("key_created", "7"),
      entry("key_created", "{}"),
      entry("key_created", R"({"id":"k","role":"admin","hash":"zz","name":""})"),
      entry("key_created", R"({"id":"","role":"admin","hash":")" + hash + R"("})"),
      entry("key_created", R"({"id":"k","role":"","hash":")" + hash + R"("})"),
      entry("key_created", R"({"id":7,"role":"admin","hash":")" + hash + R"("})"),
      entry("key_created",
            R"({"id":"k","role":"admin","expires_at":"soon","hash":")" + hash + R"("})"),
      entry("key_created", R"({"id":"k","role":"admin","expires_at":7,"hash":")" + hash + R"("})"),
      entry("key_created",
            R"({"role":"admin","id":")" + std::string(65, 'k') + R"(","hash":")" + hash + R"("})"),
      entry("key_revoked", R"({"id":"nobody"})"),
      entry("key_revoked", "[]"),
      entry("agent_registered", "{}"),
      entry("agent_registered", R"({"name":"a","plan_hash":")" + hash + R"(","definition":7})"),
      entry("agent_registered", R"({"name":"a","plan_hash":"7","definition":{}})"),
  };
  for (const std::string& body : bad) {
    Log log;
    log.add_body(body);
    log.add(key_created(key("after")));
    std::vector<std::string> warnings;
    const Registry registry = log.registry(&warnings);
    EXPECT_EQ(warnings.size(), 1u) << body;
    EXPECT_EQ(registry.keys().size(), 1u) << body;
    EXPECT_EQ(registry.agents().size(), 0u) << body;
    EXPECT_TRUE(registry.key("after") != nullptr) << "what follows still counts: " << body;
  }
}

AE_TEST("registry/an entry of another operation is ignored, whatever its fields contain") {
  Log log;
  log.add({.at = kDay,
           .by = "key_created",
           .act = "fork",
           .job = {},
           .detail = Value::object({{"agent_registered", "key_revoked"}})});
  std::vector<std::string> warnings;
  EXPECT_EQ(log.registry(&warnings).keys().size(), 0u);
  EXPECT_TRUE(warnings.empty());
}

}  // namespace
}  // namespace ae::store
