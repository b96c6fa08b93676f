#include "store/postgres/drop_blobs.h"

namespace ae::store::postgres {
namespace {

// A commit that references an existing blob holds this table in ROW SHARE mode until its end, so it
// conflicts with this lock; a later commit checks again which blobs exist.
constexpr Statement kLockBlobs{"lock_blobs", "LOCK TABLE blobs IN EXCLUSIVE MODE"};

}  // namespace

Pg<void> drop_unused_blobs(Connection& connection, const Column& hashes, const Statement& find,
                           const Statement& drop) {
  connection.add(find, Params().add(hashes));
  AE_ASSIGN(const auto answers, connection.run());
  const Rows& found = answers.back();
  if (found.empty()) return {};
  Column unused(Column::Type::bytes);
  for (int i = 0; i < found.size(); ++i) unused.add(found.hash(i, 0));
  connection.add(kLockBlobs);
  connection.add(drop, Params().add(unused));
  AE_TRY(connection.run());
  return {};
}

}  // namespace ae::store::postgres
