// Deletes the blobs that no job references any more, in the transaction that removed references to
// them: of a redaction or a pruning.
//
// Threads: as Connection.
#pragma once

#include "store/postgres/connection.h"

namespace ae::store::postgres {

// `find` selects those of the hashes that are unused, and `drop` deletes those that still are once
// no commit can add a reference. `find` is sent in one round trip with the statements that were
// added before.
Pg<void> drop_unused_blobs(Connection& connection, const Column& hashes, const Statement& find,
                           const Statement& drop);

}  // namespace ae::store::postgres
