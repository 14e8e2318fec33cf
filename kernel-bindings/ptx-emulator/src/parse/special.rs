//! Special registers by name.

use super::target::{ANY, Need, sm};
use crate::ir::{Special, Type};

/// `%tid.x` and its like; `None` if there is no such special register.
pub(crate) fn special(name: &str, member: Option<&str>) -> Option<Special> {
    let axis = match member {
        None => None,
        Some("x") => Some(0),
        Some("y") => Some(1),
        Some("z") => Some(2),
        Some(_) => return None,
    };
    if let Some(axis) = axis {
        return Some(match name {
            "%tid" => Special::Tid(axis),
            "%ntid" => Special::Ntid(axis),
            "%ctaid" => Special::Ctaid(axis),
            "%nctaid" => Special::Nctaid(axis),
            "%clusterid" => Special::ClusterId(axis),
            "%nclusterid" => Special::NClusterId(axis),
            "%cluster_ctaid" => Special::ClusterCtaid(axis),
            "%cluster_nctaid" => Special::ClusterNctaid(axis),
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NWarpId,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NSmId,
        "%gridid" => Special::GridId,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%clock" => Special::Clock,
        "%clock_hi" => Special::ClockHi,
        "%clock64" => Special::Clock64,
        "%globaltimer" => Special::GlobalTimer,
        "%globaltimer_lo" => Special::GlobalTimerLo,
        "%globaltimer_hi" => Special::GlobalTimerHi,
        "%cluster_ctarank" => Special::ClusterCtaRank,
        "%cluster_nctarank" => Special::ClusterNctaRank,
        "%is_explicit_cluster" => Special::IsExplicitCluster,
        "%dynamic_smem_size" => Special::DynamicSmemSize,
        "%total_smem_size" => Special::TotalSmemSize,
        "%aggr_smem_size" => Special::AggrSmemSize,
        _ => return None,
    })
}

/// What the target must have for a special register.
pub(crate) const fn special_need(special: Special) -> Need {
    use Special::*;
    match special {
        ClusterId(_) | NClusterId(_) | ClusterCtaid(_) | ClusterNctaid(_) | ClusterCtaRank | ClusterNctaRank
        | IsExplicitCluster => sm(90, 7, 8),
        AggrSmemSize => sm(90, 8, 1),
        _ => ANY,
    }
}

/// Type of a special register.
pub(crate) const fn special_type(special: Special) -> Type {
    match special {
        Special::GridId | Special::Clock64 | Special::GlobalTimer => Type::U64,
        Special::IsExplicitCluster => Type::Pred,
        _ => Type::U32,
    }
}
