#ifndef RAFTRIG_BRAFT_FILES_H_
#define RAFTRIG_BRAFT_FILES_H_

#include <string>

namespace raftrig {

// WriteFile makes a file with this content; with sync it is on the disk when
// WriteFile returns. On false errno says why.
bool WriteFile(const std::string& path, const std::string& content, bool sync);

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_FILES_H_
