// The hash chain of the audit log: every changed byte is detected and located.
#include "store/audit.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::store {
namespace {

AuditLog log_of(int entries) {
  AuditLog log;
  for (int i = 0; i < entries; ++i) {
    const AuditEntry entry{.at = Instant{1'700'000'000'000'000 + i},
                           .by = "ada",
                           .act = "redact",
                           .job = JobId(fmt::format("j{}", i)),
                           .detail = Value::object({{"reason", "asked"}})};
    log.rows.push_back(chain_entry(log.head, entry));
    log.head = {log.rows.back().seq, log.rows.back().hash};
  }
  return log;
}

AE_TEST("audit/the bytes and the hash of an entry are fixed") {
  const AuditLog log = log_of(2);
  EXPECT_EQ(
      log.rows[0].body,
      R"({"act":"redact","at":"2023-11-14T22:13:20.000000Z","by":"ada","detail":{"reason":"asked"},"job":"j0","seq":1})");
  EXPECT_EQ(to_hex(log.rows[0].hash),
            to_hex(sha256("aetheris.audit.v1" + std::string(32, '\0') + log.rows[0].body)));
  const std::string prev(reinterpret_cast<const char*>(log.rows[0].hash.bytes.data()), 32);
  EXPECT_EQ(log.rows[1].hash, sha256("aetheris.audit.v1" + prev + log.rows[1].body));
}

AE_TEST("audit/the text of the end of the log is fixed, and an unreadable one matches no log") {
  const AuditHead head = log_of(2).head;
  const std::string text = to_text(head);
  EXPECT_EQ(text, "2 " + to_hex(head.hash));
  EXPECT_EQ(audit_head_from_text(text), head);
  for (const std::string& bad : {std::string(), "2" + text, text.substr(1), text + "0", "x" + text,
                                 text.substr(0, 1), "2  " + to_hex(head.hash)}) {
    EXPECT_NE(audit_head_from_text(bad), head) << bad;
    EXPECT_NE(audit_head_from_text(bad), AuditHead{}) << bad;
  }
}

AE_TEST("audit/every changed byte of the log is detected") {
  const AuditLog whole = log_of(3);
  ASSERT_TRUE(verify_audit_log(whole).ok) << verify_audit_log(whole).detail;
  EXPECT_EQ(verify_audit_log(whole).entries, 3u);
  for (std::size_t row = 0; row < whole.rows.size(); ++row) {
    for (std::size_t at = 0; at < whole.rows[row].body.size(); ++at) {
      AuditLog log = whole;
      log.rows[row].body[at] ^= 1;
      const AuditVerification proof = verify_audit_log(log);
      EXPECT_FALSE(proof.ok);
      EXPECT_EQ(proof.head, "altered");
      EXPECT_EQ(proof.entries, row) << "the entries before it are verified";
    }
    for (std::size_t at = 0; at < sizeof(Hash); ++at) {
      AuditLog log = whole;
      log.rows[row].hash.bytes[at] ^= 1;
      EXPECT_FALSE(verify_audit_log(log).ok);
    }
    AuditLog log = whole;
    log.rows[row].seq += 1;
    EXPECT_FALSE(verify_audit_log(log).ok);
    log = whole;
    log.rows.erase(log.rows.begin() + static_cast<std::ptrdiff_t>(row));
    EXPECT_EQ(verify_audit_log(log).head, row == 2 ? "truncated" : "altered");
  }
  AuditLog log = whole;
  std::swap(log.rows[0], log.rows[1]);
  EXPECT_EQ(verify_audit_log(log).head, "altered");
  log = whole;
  log.head.hash.bytes[0] ^= 1;
  EXPECT_EQ(verify_audit_log(log).head, "altered");
  log = whole;
  log.rows.push_back(
      chain_entry(log.head, {.at = {}, .by = {}, .act = "more", .job = {}, .detail = {}}));
  EXPECT_EQ(verify_audit_log(log).head, "altered") << "an entry beyond the recorded head";
}

}  // namespace
}  // namespace ae::store
