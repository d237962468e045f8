// Operands of ops: addresses of what a block itself reads and writes, and routes of what it puts
// from registered memory, or into what a peer has granted (R15). Thread 0 alone.
#pragma once

#include "collect.cuh"
#include "doorbell.cuh"

namespace ringdove {

class Resolver : protected Collector {
protected:
    RINGDOVE_INLINE explicit Resolver(BlockState& shared) : Collector(shared) {}

    RINGDOVE_INLINE bool check_port(u32 place) {
        const u32 count = state.program.port_count;
        return place < count ? true : refuse(PlanFault::OpPort, count, place);
    }

    // Where in its lane's slots, at either end, an operand of `length` bytes starts.
    RINGDOVE_INLINE bool slot_offset(const Operand& operand, u64 length, u64& offset) {
        const Port& port = state.ports[operand.port];
        if (port.slots == 0 || operand.offset > port.slot_bytes ||
            length > port.slot_bytes - operand.offset) {
            return refuse(PlanFault::SlotRange, port.slots == 0 ? 0 : port.slot_bytes,
                          operand.offset + length);
        }
        const u64 index = (port.position + operand.number) & port.slot_mask;
        offset = index * port.slot_bytes + operand.offset;
        return true;
    }

    // Offset of an operand that moves with the round.
    RINGDOVE_INLINE u64 shifted(const Operand& operand) const {
        return operand.offset + state.place.shift;
    }

    // An entry of the launch's table of addresses, of which the first has number 1; 0 for number 0.
    RINGDOVE_INLINE bool load_entry(u32 number, u64& entry) {
        if (number > state.arguments.address_count) {
            return refuse(PlanFault::BufferNumber, state.arguments.address_count, number);
        }
        // Written by a copy that the stream ends before the launch.
        const u64 address = state.arguments.addresses + u64(number - 1) * 8;
        entry = number == 0 ? 0 : ptx::load<u64>(address);
        return true;
    }

    // The address of an operand of a copy or reduction.
    RINGDOVE_INLINE bool resolve(const Operand& operand, u64 length, u64& address) {
        switch (operand.space) {
            case Space::Buffer:
                if (operand.number >= BUFFERS_MAX ||
                    state.arguments.buffers[operand.number] == 0) {
                    return refuse(PlanFault::BufferNumber, BUFFERS_MAX, operand.number);
                }
                address = state.arguments.buffers[operand.number] + shifted(operand);
                return true;
            case Space::Slot: {
                if (operand.port >= state.program.port_count) {
                    return refuse(PlanFault::OpPort, state.program.port_count, operand.port);
                }
                u64 offset = 0;
                if (!slot_offset(operand, length, offset)) {
                    return false;
                }
                address = state.ports[operand.port].slots + offset;
                return true;
            }
            case Space::Address:
            case Space::Peer: {
                if (!load_entry(operand.number, address)) {
                    return false;
                }
                if (operand.space == Space::Peer && address == 0) {
                    return refuse(PlanFault::Place, 1, 0);
                }
                address += shifted(operand);
                return true;
            }
            default:
                return refuse(PlanFault::Space, u64(Space::Address),
                                       u64(operand.space));
        }
    }

    // The word behind the slots at this end of a lane in which a grant stands (R15).
    static RINGDOVE_INLINE u64 grant_word(const Port& port) {
        return port.slots + u64(port.slot_mask + 1) * port.slot_bytes;
    }

    // The entry of the table of sources. The host writes it before a peer can grant the place.
    RINGDOVE_INLINE u32 load_route(u32 source, u32 number) const {
        const u64 entry = state.communicator.sources + u64(source * place::GRANTS_MAX + number) * 4;
        return ptx::load_relaxed_system_u32(entry);
    }

    // A put from registered memory, or into what the peer has granted.
    RINGDOVE_INLINE bool describe_place(const Head& head, const Operand& from, const Operand& to,
                                        Request& request) {
        const Port& port = state.ports[head.port];
        if (to.port != head.port) {
            return refuse(PlanFault::SlotPort, head.port, to.port);
        }
        u32 source = 0;
        u64 at = 0;
        if (from.space == Space::Slot) {
            if (!resolve(from, request.length, at)) {
                return false;
            }
            request.source_offset = at - staging_of(state.communicator, port);
        } else if (from.space == Space::Address) {
            if (!load_entry(from.number, at)) {
                return false;
            }
            source = u32(at >> place::OFFSET_BITS);
            request.source_offset = (at & OFFSET_MAX) + shifted(from);
        } else {
            source = state.arguments.source;
            request.source_offset = state.arguments.region_offsets[0] + shifted(from);
        }
        // No more than the port's own sequence of credits: the wait for one of them was an acquire.
        const u64 granted = to.space == Space::Granted && port.slots != 0
                                ? ptx::load_relaxed_system_u64(grant_word(port))
                                : 0;
        const u32 number = u32(granted >> place::OFFSET_BITS) & (place::GRANTS_MAX - 1);
        const u32 generation = u32(granted >> place::GENERATION_SHIFT);
        const bool is_known = source < place::SOURCES_MAX && state.communicator.sources != 0 &&
                              (from.space == Space::Slot || source != 0);
        const u32 entry = is_known ? load_route(source, number) : 0;
        if (number != 0) {
            if (entry == 0 || entry >> place::ENTRY_GENERATION_SHIFT != generation) {
                return refuse(PlanFault::Place, generation, entry >> place::ENTRY_GENERATION_SHIFT);
            }
            request.route = entry & ROUTE_MAX;
            request.destination_offset = (granted & OFFSET_MAX) + shifted(to);
            return true;
        }
        Operand slot = to;
        slot.offset = to.space == Space::Granted ? 0 : to.offset;
        if (!slot_offset(slot, request.length, request.destination_offset)) {
            return false;
        }
        if (from.space == Space::Slot) {
            request.route = port.route;
            return true;
        }
        request.route = entry + port.route;
        return entry != 0 || refuse(PlanFault::Place, 0, source);
    }
};

}  // namespace ringdove
