// Verifiers without HTTP: files, and rows of a database.
//
// Threads: as for Verifier; they read on the BlockingReader's thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/verify/compare.h"
#include "tools/verify/verify.h"

namespace ae::tools {

Result<std::unique_ptr<Verifier>> make_file_verifier(const Value& definition,
                                                     VerifierDependencies deps);
Result<std::unique_ptr<Verifier>> make_sql_verifier(const Value& definition,
                                                    VerifierDependencies deps);

bool is_postgres_address(std::string_view store);
// Blocks, for 30 s at most. `params` is a list; the query refers to them as $1, $2, …
Observation read_postgres_row(const std::string& address, const std::string& query,
                              const Value& params);

}  // namespace ae::tools
