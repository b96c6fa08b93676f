#include "store/sqlite/audit_table.h"

#include <string>

namespace ae::store::sqlite {
namespace {

Sql<AuditHead> read_head(Database& db) {
  AE_ASSIGN(Statement meta, db.prepare("SELECT value FROM meta WHERE key = 'audit_head'"));
  Rows row(meta);
  AE_ASSIGN(const bool found, row.next());
  if (!found) return AuditHead{};
  return audit_head_from_text(row->bytes(0));
}

}  // namespace

Sql<void> append_audit(Database& db, const AuditEntry& entry) {
  AE_ASSIGN(const AuditHead head, read_head(db));
  const AuditRow row = chain_entry(head, entry);
  AE_ASSIGN(Statement insert, db.prepare("INSERT INTO audit(seq, body, hash) VALUES(?1, ?2, ?3)"));
  AE_TRY(insert.run(row.seq, row.body, row.hash));
  AE_ASSIGN(Statement put, db.prepare("INSERT INTO meta VALUES('audit_head', ?1) "
                                      "ON CONFLICT DO UPDATE SET value = excluded.value"));
  return put.run(to_text(AuditHead{row.seq, row.hash}));
}

Sql<AuditLog> read_audit(Database& db, std::uint64_t after) {
  AuditLog log;
  AE_ASSIGN(Statement rows,
            db.prepare("SELECT seq, body, hash FROM audit WHERE seq > ?1 ORDER BY seq"));
  for (Rows row(rows, after);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    log.rows.push_back({row->count(0), row->text(1), row->hash(2)});
  }
  AE_ASSIGN(log.head, read_head(db));
  return log;
}

}  // namespace ae::store::sqlite
