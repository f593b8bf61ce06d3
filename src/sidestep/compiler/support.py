"""The parts of a handler's LLVM text that are always the same: counters.

A thread increments its own cells by one instruction without a lock: neither a signal nor another CPU can come
between. A thread without a block of its own (it has the scratch block) uses its process's, with a lock.
"""

SUPPORT = """
define internal void @cell_add(ptr %block, i64 %cell, i64 %amount) alwaysinline nounwind {
  %scratch = ptrtoint ptr @scratch_block to i64
  %own = ptrtoint ptr %block to i64
  %none = icmp eq i64 %own, %scratch
  br i1 %none, label %locked, label %plain, !prof !0
plain:
  %place = getelementptr i64, ptr %block, i64 %cell
  call void asm sideeffect "addq $1, $0", "=*m,re,*m,~{flags},~{memory}"(
    ptr elementtype(i64) %place, i64 %amount, ptr elementtype(i64) %place)
  ret void
locked:
  call preserve_mostcc void @cell_add_locked(i64 %cell, i64 %amount)
  ret void
}

define internal preserve_mostcc ptr @process_block() noinline nounwind {
  %known = load volatile ptr, ptr @process_page
  %any = icmp ne ptr %known, null
  %found = select i1 %any, ptr %known, ptr @shared_block
  ret ptr %found
}

define internal preserve_mostcc void @cell_add_locked(i64 %cell, i64 %amount) noinline nounwind {
  %block = call preserve_mostcc ptr @process_block()
  %place = getelementptr i64, ptr %block, i64 %cell
  %old = atomicrmw add ptr %place, i64 %amount seq_cst
  ret void
}

define internal void @cell_max(ptr %block, i64 %cell, i64 %value) alwaysinline nounwind {
  %scratch = ptrtoint ptr @scratch_block to i64
  %own = ptrtoint ptr %block to i64
  %none = icmp eq i64 %own, %scratch
  br i1 %none, label %locked, label %plain, !prof !0
locked:
  %other = call preserve_mostcc ptr @process_block()
  br label %plain
plain:
  %base = phi ptr [ %block, %0 ], [ %other, %locked ]
  %place = getelementptr i64, ptr %base, i64 %cell
  %before = load volatile i64, ptr %place
  %more = icmp ugt i64 %value, %before
  br i1 %more, label %raise, label %done, !prof !0
raise:
  %old = atomicrmw umax ptr %place, i64 %value seq_cst
  br label %done
done:
  ret void
}

declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.readcyclecounter()
!0 = !{!"branch_weights", i32 1, i32 1000}
"""
